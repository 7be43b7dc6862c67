import { computed, signal } from '@preact/signals'
import { type Conversation, titleOf } from '../talk/conversation'
import { newId } from '../talk/id'
import { type Message, settled } from '../talk/message'
import { changed, DEFAULTS, readSettings, type Settings } from '../talk/settings'
import { newestLeaf, pathTo } from '../talk/tree'
import { tell } from '../store/tabs'
import { keep, store } from './keeping'

/** All conversations, and the one that is shown; null is a new one, which is stored with its first message. */
export const conversations = signal<Conversation[]>([])
export const openId = signal<string | null>(null)
export const messages = signal<Message[]>([])

/** What new conversations begin with. */
export const defaults = signal<Settings>(DEFAULTS)

export const open = computed(() => conversations.value.find((one) => one.id === openId.value) ?? null)
export const path = computed(() => pathTo(messages.value, open.value?.leaf ?? null))
export const settings = computed(() => open.value?.settings ?? defaults.value)

export async function loadList(): Promise<void> {
  defaults.value = readSettings(await store.setting('defaults'))
  const found = await store.conversations()
  conversations.value = found.sort((one, other) => other.updated - one.updated)
}

/** Show a conversation, or a new one for null or an id that is not there. */
export async function show(id: string | null): Promise<void> {
  const known = id !== null && conversations.value.some((one) => one.id === id) ? id : null
  const found = known === null ? [] : await store.messages(known)
  openId.value = known
  messages.value = found.map((message) => settled(message, Date.now()))
  const hash = known === null ? '' : `#${known}`
  if (location.hash !== hash) history.pushState(null, '', location.pathname + hash)
}

export async function reloadMessages(): Promise<void> {
  const id = openId.value
  if (id === null) return
  const found = await store.messages(id)
  if (openId.value === id) messages.value = found.map((message) => settled(message, Date.now()))
}

/** Store a new conversation and show it. */
export async function begin(firstText: string): Promise<Conversation> {
  const now = Date.now()
  const conversation: Conversation = {
    id: newId(), title: titleOf(firstText), created: now, updated: now, leaf: null, settings: defaults.value,
  }
  conversations.value = [conversation, ...conversations.value]
  messages.value = []
  openId.value = conversation.id
  history.pushState(null, '', `${location.pathname}#${conversation.id}`)
  await keep(store.add({ conversation, messages: [] }))
  tell({ what: 'list' })
  return conversation
}

export async function changeConversation(id: string, change: Partial<Conversation>): Promise<void> {
  conversations.value = conversations.value
    .map((one) => (one.id === id ? { ...one, ...change } : one))
    .sort((one, other) => other.updated - one.updated)
  await keep(store.change(id, change))
  tell({ what: 'conversation', id })
}

/** Store messages, and show them where their conversation is open. False where it is gone. */
export async function putMessages(...changes: Message[]): Promise<boolean> {
  const id = changes[0]!.conversation
  if (id === openId.value) {
    const byId = new Map(changes.map((message) => [message.id, message]))
    const kept = messages.value.map((message) => byId.get(message.id) ?? message)
    const known = new Set(kept.map((message) => message.id))
    messages.value = [...kept, ...changes.filter((message) => !known.has(message.id))]
  }
  const isThere = await keep(store.put(id, ...changes))
  tell({ what: 'conversation', id })
  return isThere !== false
}

export async function dropMessage(message: Message): Promise<void> {
  if (message.conversation === openId.value) messages.value = messages.value.filter((one) => one.id !== message.id)
  await keep(store.removeMessage(message.id))
}

/** Show the branch that a message is on. */
export async function showBranch(message: Message): Promise<void> {
  await changeConversation(message.conversation, { leaf: newestLeaf(messages.value, message.id) })
}

export async function changeSettings(change: Partial<Settings>): Promise<void> {
  const next = changed(settings.value, change)
  defaults.value = next
  // Both at once: `settings` must hold this change before the next key is typed.
  await Promise.all([
    open.value && changeConversation(open.value.id, { settings: next }),
    keep(store.setSetting('defaults', next)),
  ])
}

export async function remove(id: string): Promise<void> {
  conversations.value = conversations.value.filter((one) => one.id !== id)
  if (openId.value === id) await show(null)
  await keep(store.remove(id))
  tell({ what: 'list' })
}
