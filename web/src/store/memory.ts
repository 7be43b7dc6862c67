import type { Conversation } from '../talk/conversation'
import type { Message } from '../talk/message'
import type { Whole } from '../talk/transfer'
import { holds, type Store } from './store'

/** A store for browsers that allow none: it lives as long as the tab. */
export class Memory implements Store {
  private readonly table = new Map<string, Conversation>()
  private readonly texts = new Map<string, Message>()
  private readonly settings = new Map<string, unknown>()

  async conversations(): Promise<Conversation[]> {
    return [...this.table.values()]
  }

  async messages(conversation: string): Promise<Message[]> {
    return [...this.texts.values()].filter((message) => message.conversation === conversation)
  }

  async add({ conversation, messages }: Whole): Promise<void> {
    this.table.set(conversation.id, conversation)
    await this.put(conversation.id, ...messages)
  }

  async change(conversation: string, change: Partial<Conversation>): Promise<boolean> {
    const current = this.table.get(conversation)
    if (current) this.table.set(conversation, { ...current, ...change })
    return current !== undefined
  }

  async put(conversation: string, ...messages: Message[]): Promise<boolean> {
    if (!this.table.has(conversation)) return false
    for (const message of messages) this.texts.set(message.id, message)
    return true
  }

  async removeMessage(id: string): Promise<void> {
    this.texts.delete(id)
  }

  async remove(conversation: string): Promise<void> {
    this.table.delete(conversation)
    for (const message of await this.messages(conversation)) this.texts.delete(message.id)
  }

  async search(text: string): Promise<Set<string>> {
    const lowered = text.toLowerCase()
    return new Set([...this.texts.values()].filter((message) => holds(message, lowered)).map((message) => message.conversation))
  }

  async setting(name: string): Promise<unknown> {
    return this.settings.get(name)
  }

  async setSetting(name: string, value: unknown): Promise<void> {
    this.settings.set(name, value)
  }

  async forgetEverything(): Promise<void> {
    for (const map of [this.table, this.texts, this.settings]) map.clear()
  }
}
