import type { Conversation } from './conversation'
import { sentText } from './files'
import { newId } from './id'
import type { Message, TextFile } from './message'
import { readSettings } from './settings'
import { pathTo } from './tree'

/** A conversation with all its branches. */
export interface Whole {
  conversation: Conversation
  messages: Message[]
}

interface Exported {
  format: 'typebar-conversations'
  version: 1
  conversations: Whole[]
}

export function toJSON(conversations: Whole[]): string {
  const file: Exported = { format: 'typebar-conversations', version: 1, conversations }
  return JSON.stringify(file, null, 1)
}

const HEADINGS = { user: 'You', assistant: 'Answer' }

/** The shown branch as Markdown that people and `fromMarkdown` can read. */
export function toMarkdown({ conversation, messages }: Whole): string {
  const parts = [`# ${conversation.title.replace(/\n/g, ' ')}`]
  if (conversation.settings.system) parts.push('## System', conversation.settings.system)
  for (const message of pathTo(messages, conversation.leaf)) parts.push(`## ${HEADINGS[message.role]}`, sentText(message))
  return parts.join('\n\n') + '\n'
}

/** Conversations out of a file that `toJSON` or `toMarkdown` wrote, under new ids. An Error where it is neither. */
export function fromFile(text: string, now: number): Whole[] {
  return text.trimStart().startsWith('{') ? fromJSON(text, now) : [fromMarkdown(text, now)]
}

function fromJSON(text: string, now: number): Whole[] {
  const file = JSON.parse(text) as Partial<Exported>
  if (file.format !== 'typebar-conversations' || !Array.isArray(file.conversations)) throw new Error('not an export')
  return file.conversations.map((whole) => renamed(checked(whole, now)))
}

function checked(whole: Partial<Whole>, now: number): Whole {
  const { conversation, messages } = whole
  if (!conversation || !Array.isArray(messages)) throw new Error('a conversation is not complete')
  return {
    conversation: {
      id: String(conversation.id),
      title: String(conversation.title ?? ''),
      created: time(conversation.created, now),
      updated: time(conversation.updated, now),
      leaf: typeof conversation.leaf === 'string' ? conversation.leaf : null,
      settings: readSettings(conversation.settings),
    },
    messages: messages.map((message) => checkedMessage(message, now)),
  }
}

const ENDS = ['done', 'length', 'stopped', 'cut', 'failed']

function checkedMessage(message: Partial<Message>, now: number): Message {
  if (typeof message.id !== 'string' || typeof message.text !== 'string') throw new Error('a message is not complete')
  if (message.role !== 'user' && message.role !== 'assistant') throw new Error('a message is nobody’s')
  const result: Message = {
    id: message.id,
    conversation: '',
    parent: typeof message.parent === 'string' ? message.parent : null,
    role: message.role,
    text: message.text,
    created: time(message.created, now),
  }
  if (Array.isArray(message.files)) result.files = message.files.map(checkedFile)
  if (message.role === 'assistant') result.end = ENDS.includes(message.end ?? '') ? message.end! : 'cut'
  if (isFigures(message.figures)) result.figures = message.figures
  if (typeof message.model === 'string') result.model = message.model
  if (message.isJSON === true) result.isJSON = true
  return result
}

function checkedFile(file: Partial<TextFile>): TextFile {
  const text = String(file.text ?? '')
  return { name: String(file.name ?? 'file'), text, size: new TextEncoder().encode(text).length }
}

function isFigures(value: Message['figures']): value is NonNullable<Message['figures']> {
  const names = ['firstToken', 'total', 'perSecond', 'tokens', 'cached', 'prompt'] as const
  return typeof value === 'object' && value !== null && names.every((name) => typeof value[name] === 'number')
}

function time(value: unknown, now: number): number {
  return typeof value === 'number' && value > 0 ? value : now
}

/** The same conversation under ids of its own, so that importing twice overwrites nothing. Order of ids is kept. */
export function renamed({ conversation, messages }: Whole): Whole {
  const id = newId()
  const sorted = [...messages].sort((one, other) => (one.id < other.id ? -1 : 1))
  const ids = new Map(sorted.map((message) => [message.id, newId()]))
  const known = (old: string | null) => (old === null ? null : (ids.get(old) ?? null))
  return {
    conversation: { ...conversation, id, leaf: known(conversation.leaf) },
    messages: sorted.map((message) => ({
      ...message, id: ids.get(message.id)!, conversation: id, parent: known(message.parent),
    })),
  }
}

/** A heading inside an answer that looks like one of ours is taken for it: Markdown has no other place to say. */
function fromMarkdown(text: string, now: number): Whole {
  const lines = text.replace(/\r\n/g, '\n')
  const title = /^# (.+)$/m.exec(lines)?.[1]
  const parts = lines.split(/^## (System|You|Answer)\n\n/m)
  if (title === undefined || parts.length < 3) throw new Error('no conversation in this file')
  const conversation: Conversation = {
    id: newId(), title, created: now, updated: now, leaf: null, settings: readSettings({}),
  }
  const messages: Message[] = []
  for (let index = 1; index + 1 < parts.length; index += 2) {
    const body = parts[index + 1]!.replace(index + 2 < parts.length ? /\n\n$/ : /\n$/, '')
    if (parts[index] === 'System') conversation.settings.system = body
    else messages.push(imported(parts[index] === 'You' ? 'user' : 'assistant', body, conversation, messages.at(-1), now))
  }
  conversation.leaf = messages.at(-1)?.id ?? null
  return { conversation, messages }
}

function imported(role: Message['role'], text: string, of: Conversation, parent: Message | undefined, now: number): Message {
  const message: Message = { id: newId(), conversation: of.id, parent: parent?.id ?? null, role, text, created: now }
  return role === 'assistant' ? { ...message, end: 'done' } : message
}
