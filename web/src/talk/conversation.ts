import type { Settings } from './settings'

export interface Conversation {
  id: string
  title: string
  created: number
  updated: number
  leaf: string | null // the message that the shown branch ends with
  settings: Settings
  keptFrom?: string // where all that fits is kept: the oldest message that still does
}

const TITLE = 60 // characters

/** A title from the first message. */
export function titleOf(text: string): string {
  const line = text.trim().split('\n', 1)[0]!.trim()
  const characters = Array.from(line)
  return characters.length <= TITLE ? line : characters.slice(0, TITLE - 1).join('').replace(/[\s\p{P}]+$/u, '') + '…'
}
