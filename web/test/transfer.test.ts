import { expect, test } from 'vitest'
import type { Message } from '../src/talk/message'
import { DEFAULTS } from '../src/talk/settings'
import { fromFile, toJSON, toMarkdown, type Whole } from '../src/talk/transfer'
import { pathTo } from '../src/talk/tree'

const ODD = 'a\n\n\n  b \t&lt; e\u0301\n\n# not ours\n\n```\n## x\n```'
const message = (id: string, parent: string | null, role: Message['role'], text: string, more: Partial<Message> = {}): Message => ({
  id, conversation: 'c', parent, role, text, created: 5, ...(role === 'assistant' ? { end: 'done' as const } : {}), ...more,
})
const WHOLE: Whole = {
  conversation: { id: 'c', title: 'A title', created: 1, updated: 2, leaf: '4', settings: { ...DEFAULTS, system: 'Be brief.' } },
  messages: [
    message('1', null, 'user', ODD, { files: [{ name: 'f.txt', size: 4, text: 'file' }] }),
    message('2', '1', 'assistant', 'first', { end: 'cut', isJSON: true }),
    message('3', '1', 'assistant', ODD),
    message('4', '3', 'user', '<script>alert(1)</script>'),
  ],
}

const shape = ({ conversation, messages }: Whole) => ({
  title: conversation.title,
  system: conversation.settings.system,
  path: pathTo(messages, conversation.leaf).map(({ role, text, files }) => ({ role, text, files })),
  ends: messages.map(({ end }) => end),
  json: messages.map(({ isJSON }) => isJSON),
})

test('JSON brings back everything, under new ids', () => {
  const [first] = fromFile(toJSON([WHOLE]), 9)
  const [second] = fromFile(toJSON([WHOLE]), 9)
  expect(shape(first!)).toEqual(shape(WHOLE))
  expect(first!.conversation.id).not.toBe(second!.conversation.id)
  expect(new Set([...first!.messages, ...second!.messages, ...WHOLE.messages].map(({ id }) => id)).size).toBe(12)
  for (const one of first!.messages) expect(one.conversation).toBe(first!.conversation.id)
})

test('Markdown brings back the shown branch', () => {
  const { conversation, messages } = WHOLE
  const plain = { conversation, messages: messages.map(({ files: _, ...rest }) => rest) }
  const [read] = fromFile(toMarkdown(plain), 9)
  expect(shape(read!).path).toEqual(shape(plain).path)
  expect(read!.conversation).toMatchObject({ title: 'A title', settings: { system: 'Be brief.' } })
})

test.each(['', '{}', '{"format":"typebar-conversations","version":1,"conversations":[{}]}', 'just text', '[1]', '{"a":', '# Title only'])(
  '%j is refused', (text) => {
    expect(() => fromFile(text, 9)).toThrow()
  })

test('hostile values become harmless ones', () => {
  const hostile = {
    format: 'typebar-conversations', version: 1,
    conversations: [{
      conversation: { id: 1, title: { a: 1 }, leaf: 7, settings: { turns: 1e9, system: [] }, updated: 'x' },
      messages: [{ id: 'x', text: 't', role: 'assistant', parent: 'x', end: 'writing', figures: { tokens: '<b>' }, problem: { kind: 'server' } }],
    }],
  }
  const [read] = fromFile(JSON.stringify(hostile), 9)
  expect(read!.conversation).toMatchObject({ leaf: null, updated: 9, settings: DEFAULTS })
  expect(read!.messages[0]).toMatchObject({ end: 'cut' })
  expect(read!.messages[0]).not.toHaveProperty('figures')
  expect(read!.messages[0]).not.toHaveProperty('problem')
})
