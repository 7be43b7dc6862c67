import { expect, test } from 'vitest'
import type { SentMessage } from '../src/api/chat'
import { chatBody, countTurns, fitting, from, lastTurns, sent } from '../src/talk/context'
import { readFile, sentText } from '../src/talk/files'
import type { Message } from '../src/talk/message'
import { changed, DEFAULTS, readSettings } from '../src/talk/settings'

function message(id: string, role: Message['role'], text: string, more: Partial<Message> = {}): Message {
  return { id, conversation: 'c', parent: null, role, text, created: 0, ...more }
}

function talk(turns: number): Message[] {
  return Array.from({ length: turns }, (_, turn) => [
    message(`q${turn}`, 'user', `question ${turn}`),
    message(`a${turn}`, 'assistant', `answer ${turn}`),
  ]).flat()
}

const ids = (messages: Message[]) => messages.map(({ id }) => id)

test('the last turns are sent, each with its answer', () => {
  const path = [...talk(6), message('q6', 'user', 'new')]
  expect(ids(lastTurns(path, 3))).toEqual(['q4', 'a4', 'q5', 'a5', 'q6'])
  expect(ids(lastTurns(path, 1))).toEqual(['q6'])
  expect(lastTurns(path, 50)).toEqual(path)
})

test('questions without an answer between them are one turn', () => {
  const path = [message('1', 'user', 'a'), message('2', 'assistant', 'b'), message('3', 'user', 'c'), message('4', 'user', 'd')]
  expect(countTurns(path)).toBe(2)
  expect(ids(lastTurns(path, 1))).toEqual(['3', '4'])
})

test('texts are sent exactly as they are', () => {
  const odd = 'a\n\n\n  b \t&lt; e\u0301 \u00e9 “q” \r\n<b> \u2028\n'
  const path = [message('1', 'user', odd), message('2', 'assistant', odd), message('3', 'user', 'x')]
  expect(sent('', path).map(({ content }) => content)).toEqual([odd, odd, 'x'])
  expect(JSON.parse(JSON.stringify(sent(' sys ', path)))[0]).toEqual({ role: 'system', content: ' sys ' })
})

test('an answer without a text is left out', () => {
  expect(sent('', [message('1', 'user', 'a'), message('2', 'assistant', ''), message('3', 'user', 'b')])).toHaveLength(2)
})

test('what is longer than the context loses its oldest turns, several at once', async () => {
  const path = [...talk(40), message('last', 'user', 'new')]
  const count = async (messages: SentMessage[]) => ({ count: messages.length * 10, limit: 400 })
  const kept = await fitting(path, 'system', null, count)
  expect(kept.at(-1)!.id).toBe('last')
  expect((kept.length + 1) * 10).toBeLessThanOrEqual(400 * 0.75 * 0.6)
  expect((kept.length + 3) * 10).toBeGreaterThan(400 * 0.75 * 0.6)
  expect(kept[0]!.role).toBe('user')
  const next = [...kept, message('a', 'assistant', 'x'), message('q', 'user', 'y')]
  expect(await fitting(next, 'system', null, count)).toEqual(next) // the start stays, so the server can reuse it
})

test('all is kept while it fits, and the last turn in any case', async () => {
  const path = talk(4)
  expect(await fitting(path, '', null, async () => ({ count: 10, limit: 4096 }))).toEqual(path)
  expect(ids(await fitting(path, '', null, async () => ({ count: 1e6, limit: 4096 })))).toEqual(['q3', 'a3'])
})

test('what was left out before stays out, on other branches nothing is', () => {
  const path = talk(4)
  expect(ids(from(path, 'q2'))).toEqual(['q2', 'a2', 'q3', 'a3'])
  expect(from(path, 'elsewhere')).toEqual(path)
  expect(from(path, undefined)).toEqual(path)
})

test('only settings that the person made are sent', () => {
  const path = [message('1', 'user', 'a')]
  expect(chatBody(DEFAULTS, path)).toEqual({ messages: [{ role: 'user', content: 'a' }] })
  const own = changed(changed(DEFAULTS, { preset: 'chat' }), { seed: 0, maxTokens: 5 })
  expect(chatBody(own, path)).toMatchObject({ temperature: 0.7, top_p: 0.8, top_k: 20, seed: 0, max_tokens: 5 })
})

test('a path that ends with an answer continues it', () => {
  const body = chatBody(DEFAULTS, [message('1', 'user', 'a'), message('2', 'assistant', 'b ')])
  expect(body).toMatchObject({ continue_final_message: true, add_generation_prompt: false })
  expect(body.messages.at(-1)).toEqual({ role: 'assistant', content: 'b ' })
})

test('JSON is asked for where it is switched on, but not of an answer that goes on', () => {
  const settings = changed(DEFAULTS, { json: true })
  const path = [message('1', 'user', 'a'), message('2', 'assistant', '{"b": ')]
  expect(chatBody(settings, path.slice(0, 1)).response_format).toEqual({ type: 'json_object' })
  expect(chatBody(settings, path)).not.toHaveProperty('response_format')
  expect(chatBody(DEFAULTS, path.slice(0, 1))).not.toHaveProperty('response_format')
  expect(readSettings({ json: true }).json).toBe(true)
  expect(readSettings({ json: 'true' }).json).toBe(false)
})

test('a change of the sampling makes the preset one’s own', () => {
  const code = changed(DEFAULTS, { preset: 'code' })
  expect(code.temperature).toBe(0.3)
  expect(changed(code, { temperature: 1 }).preset).toBe('own')
  expect(changed(code, { system: 'x' }).preset).toBe('code')
  expect(changed(code, { preset: 'server' }).temperature).toBeNull()
})

test('settings of unknown origin are made right', () => {
  expect(readSettings(null)).toEqual(DEFAULTS)
  expect(readSettings({ temperature: 'hot', topP: 7, turns: -1, preset: 'x', seed: NaN, system: 4 })).toEqual(DEFAULTS)
})

test('a file is sent whole, in a fence that its text cannot end', () => {
  const text = 'a\n```\nb\n````\nc'
  const sentFile = sentText({ text: 'explain', files: [{ name: 'x.md', size: 15, text }] })
  expect(sentFile).toBe(`x.md:\n\`\`\`\`\`md\n${text}\n\`\`\`\`\`\n\nexplain`)
})

test('files that are no text or too large are refused, never cut', async () => {
  expect(await readFile(new File(['héllo'], 'a.txt'))).toEqual({ name: 'a.txt', size: 6, text: 'héllo' })
  expect(await readFile(new File([new Uint8Array([0xff, 0xfe, 0])], 'b.bin'))).toMatchObject({ reason: 'binary' })
  expect(await readFile(new File(['a\0b'], 'c.txt'))).toMatchObject({ reason: 'binary' })
  expect(await readFile(new File(['x'.repeat(1_000_001)], 'd.txt'))).toMatchObject({ reason: 'large', size: 1_000_001 })
})
