/** How an answer stands: being written, complete, or how it ended otherwise. */
export type End = 'writing' | 'done' | 'length' | 'stopped' | 'cut' | 'failed'

/** Numbers of an answer; times in ms as the page saw them, `perSecond` as the server did. */
export interface Figures {
  firstToken: number
  total: number
  perSecond: number
  tokens: number
  cached: number
  prompt: number
}

export interface TextFile {
  name: string
  size: number // bytes
  text: string
}

export interface Problem {
  kind: 'context' | 'gone' | 'busy' | 'key' | 'server'
  text: string // the server's words, for `server`
  need?: number // tokens, for `context`
  limit?: number
}

/** One message of the tree that a conversation is. Texts are kept and sent exactly as they were typed or received. */
export interface Message {
  id: string
  conversation: string
  parent: string | null
  role: 'user' | 'assistant'
  text: string
  created: number // ms since 1970, as all times here
  files?: TextFile[]
  end?: End
  touched?: number // of an answer being written: when it was last stored
  figures?: Figures
  problem?: Problem
  model?: string
  isJSON?: boolean // asked for as a JSON object
}

/** An answer that has an unfinished text to go on from. */
export function canContinue(message: Message): boolean {
  return message.role === 'assistant' && message.text !== '' && ['length', 'stopped', 'cut', 'failed'].includes(message.end ?? '')
}

const FORGOTTEN = 10_000 // ms without news after which nobody writes an answer any more

/** The message as it stands: one whose writer went away, with its tab, is cut. */
export function settled(message: Message, now: number): Message {
  const isLost = message.end === 'writing' && now - (message.touched ?? 0) > FORGOTTEN
  return isLost ? { ...message, end: 'cut' } : message
}
