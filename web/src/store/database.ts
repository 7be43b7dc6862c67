import { type DBSchema, type IDBPDatabase, openDB } from 'idb'
import type { Conversation } from '../talk/conversation'
import type { Message } from '../talk/message'
import type { Whole } from '../talk/transfer'
import { holds, type Store } from './store'

interface Tables extends DBSchema {
  conversations: { key: string; value: Conversation }
  messages: { key: string; value: Message; indexes: { conversation: string } }
  settings: { key: string; value: unknown }
}

const ALL = ['conversations', 'messages', 'settings'] as const

/** The store in the browser's IndexedDB. */
export class Database implements Store {
  private constructor(private readonly tables: IDBPDatabase<Tables>) {}

  static async open(name = 'typebar'): Promise<Database> {
    const tables = await openDB<Tables>(name, 1, {
      upgrade(database) {
        database.createObjectStore('conversations', { keyPath: 'id' })
        database.createObjectStore('messages', { keyPath: 'id' }).createIndex('conversation', 'conversation')
        database.createObjectStore('settings')
      },
      blocking: (_, __, event) => (event.target as IDBDatabase).close(), // a newer page in another tab may go on
    })
    return new Database(tables)
  }

  conversations(): Promise<Conversation[]> {
    return this.tables.getAll('conversations')
  }

  messages(conversation: string): Promise<Message[]> {
    return this.tables.getAllFromIndex('messages', 'conversation', conversation)
  }

  async add({ conversation, messages }: Whole): Promise<void> {
    const change = this.tables.transaction(['conversations', 'messages'], 'readwrite')
    void change.objectStore('conversations').put(conversation)
    for (const message of messages) void change.objectStore('messages').put(message)
    await change.done
  }

  async change(conversation: string, changes: Partial<Conversation>): Promise<boolean> {
    const change = this.tables.transaction('conversations', 'readwrite')
    const current = await change.store.get(conversation)
    if (current) void change.store.put({ ...current, ...changes })
    await change.done
    return current !== undefined
  }

  async put(conversation: string, ...messages: Message[]): Promise<boolean> {
    const change = this.tables.transaction(['conversations', 'messages'], 'readwrite')
    const isThere = (await change.objectStore('conversations').count(conversation)) > 0
    if (isThere) for (const message of messages) void change.objectStore('messages').put(message)
    await change.done
    return isThere
  }

  async removeMessage(id: string): Promise<void> {
    await this.tables.delete('messages', id)
  }

  async remove(conversation: string): Promise<void> {
    const change = this.tables.transaction(['conversations', 'messages'], 'readwrite')
    void change.objectStore('conversations').delete(conversation)
    const messages = change.objectStore('messages')
    for (const id of await messages.index('conversation').getAllKeys(conversation)) void messages.delete(id)
    await change.done
  }

  async search(text: string): Promise<Set<string>> {
    const found = new Set<string>()
    const lowered = text.toLowerCase()
    for (let at = await this.tables.transaction('messages').store.openCursor(); at; at = await at.continue()) {
      if (!found.has(at.value.conversation) && holds(at.value, lowered)) found.add(at.value.conversation)
    }
    return found
  }

  setting(name: string): Promise<unknown> {
    return this.tables.get('settings', name)
  }

  async setSetting(name: string, value: unknown): Promise<void> {
    await this.tables.put('settings', value, name)
  }

  async forgetEverything(): Promise<void> {
    const change = this.tables.transaction(ALL, 'readwrite')
    for (const name of ALL) void change.objectStore(name).clear()
    await change.done
  }
}
