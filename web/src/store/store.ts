import type { Conversation } from '../talk/conversation'
import type { Message } from '../talk/message'
import type { Whole } from '../talk/transfer'

/** Where conversations and settings are kept. Several tabs may use it: nothing is overwritten that is not named. */
export interface Store {
  conversations(): Promise<Conversation[]>
  messages(conversation: string): Promise<Message[]>
  add(whole: Whole): Promise<void>
  /** Change some fields; false where the conversation is gone, as it is after another tab deleted it. */
  change(conversation: string, change: Partial<Conversation>): Promise<boolean>
  /** Store messages of a conversation; false where it is gone. */
  put(conversation: string, ...messages: Message[]): Promise<boolean>
  removeMessage(id: string): Promise<void>
  remove(conversation: string): Promise<void>
  /** Ids of the conversations with `text` in a message, whatever the case. */
  search(text: string): Promise<Set<string>>
  setting(name: string): Promise<unknown>
  setSetting(name: string, value: unknown): Promise<void>
  forgetEverything(): Promise<void>
}

export function holds(message: Message, lowered: string): boolean {
  return message.text.toLowerCase().includes(lowered) || (message.files ?? []).some((file) => file.name.toLowerCase().includes(lowered))
}
