import type { ChatBody, SentMessage } from '../api/chat'
import { sentText } from './files'
import type { Message } from './message'
import type { Settings } from './settings'

/** The part of a conversation that still counts: the last `turns` questions with what follows each. */
export function lastTurns(path: readonly Message[], turns: number): Message[] {
  let left = turns
  let start = path.length
  while (start > 0 && left > 0) {
    start -= 1
    const message = path[start]!
    const isTurn = message.role === 'user' && path[start - 1]?.role !== 'user'
    if (isTurn) left -= 1
  }
  return path.slice(start)
}

/** How many turns a conversation has. Questions without an answer between them are one. */
export function countTurns(path: readonly Message[]): number {
  return path.filter((message, index) => message.role === 'user' && path[index - 1]?.role !== 'user').length
}

/** The messages from `id` on; all where it is not there. */
export function from(path: readonly Message[], id: string | undefined): Message[] {
  const start = path.findIndex((message) => message.id === id)
  return path.slice(Math.max(0, start))
}

/** Messages as they are sent: system prompt first, texts untouched, answers without a text left out. */
export function sent(system: string, path: readonly Message[]): SentMessage[] {
  const messages: SentMessage[] = system === '' ? [] : [{ role: 'system', content: system }]
  for (const message of path) {
    if (message.role === 'assistant' && message.text === '') continue
    messages.push({ role: message.role, content: sentText(message) })
  }
  return messages
}

const AIM = 0.6 // of the room: what is kept once something must go, so that the start then stays the same for a while
const ANSWER = 0.25 // of the context at least stays for the answer

export type Count = (messages: SentMessage[]) => Promise<{ count: number; limit: number }>

/**
 * The latest turns that the context holds together with an answer.
 *
 * `path` comes back whole where it fits. Where it does not, turns are dropped until it fills no more than 60 % of the
 * room: dropping one at a time would move the start with every message, and the server could reuse nothing.
 */
export async function fitting(path: readonly Message[], system: string, answer: number | null, count: Count): Promise<Message[]> {
  const { count: all, limit } = await count(sent(system, path))
  const room = limit - Math.min(Math.max(answer ?? 0, limit * ANSWER), limit / 2)
  if (all <= room) return [...path]
  let [low, high] = [1, Math.max(1, countTurns(path) - 1)] // the last turn stays in any case
  while (low < high) {
    const turns = Math.ceil((low + high) / 2)
    const { count: tokens } = await count(sent(system, lastTurns(path, turns)))
    if (tokens <= room * AIM) low = turns
    else high = turns - 1
  }
  return lastTurns(path, low)
}

/** The request for an answer to `path`, whose last message is continued where it is an answer itself. */
export function chatBody(settings: Settings, path: readonly Message[]): ChatBody {
  const body: ChatBody = { messages: sent(settings.system, path) }
  if (settings.temperature !== null) body.temperature = settings.temperature
  if (settings.topP !== null) body.top_p = settings.topP
  if (settings.topK !== null) body.top_k = settings.topK
  if (settings.repetitionPenalty !== null) body.repetition_penalty = settings.repetitionPenalty
  if (settings.maxTokens !== null) body.max_tokens = settings.maxTokens
  if (settings.seed !== null) body.seed = settings.seed
  if (body.messages.at(-1)?.role === 'assistant') {
    body.continue_final_message = true
    body.add_generation_prompt = false
  } else if (settings.json) {
    body.response_format = { type: 'json_object' } // of a continued answer it would begin another object
  }
  return body
}
