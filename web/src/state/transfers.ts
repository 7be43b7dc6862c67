import { storeKey } from '../api/key'
import { t } from '../i18n'
import { tell } from '../store/tabs'
import type { Conversation } from '../talk/conversation'
import type { Message } from '../talk/message'
import { DEFAULTS } from '../talk/settings'
import { fromFile, renamed, toJSON, toMarkdown, type Whole } from '../talk/transfer'
import { pathTo } from '../talk/tree'
import { answers } from './answers'
import { conversations, defaults, loadList, messages, open, show } from './conversations'
import { keep, store } from './keeping'
import { say } from './notices'
import { DEFAULT_PREFERENCES, preferences } from './preferences'

export async function exportAll(): Promise<void> {
  const wholes = await Promise.all(conversations.value.map(whole))
  save('typebar-conversations.json', toJSON(wholes), 'application/json')
}

export async function exportOne(conversation: Conversation, as: 'json' | 'markdown'): Promise<void> {
  const one = await whole(conversation)
  const name = conversation.title.replace(/[^\p{L}\p{N} _-]+/gu, '').trim().slice(0, 50) || 'conversation'
  if (as === 'json') save(`${name}.json`, toJSON([one]), 'application/json')
  else save(`${name}.md`, toMarkdown(one), 'text/markdown')
}

export async function importFiles(files: Iterable<File>): Promise<void> {
  for (const file of files) {
    try {
      const wholes = fromFile(await file.text(), Date.now())
      for (const one of wholes) await keep(store.add(one))
      await loadList()
      tell({ what: 'list' })
      say(t('list.imported', { count: wholes.length }))
    } catch {
      say(t('list.notImported', { name: file.name }))
    }
  }
}

/** A new conversation that begins with the shown one up to a message. */
export async function branchOff(message: Message): Promise<void> {
  const now = Date.now()
  const conversation = { ...open.value!, created: now, updated: now, leaf: message.id }
  const branch = renamed({ conversation, messages: pathTo(messages.value, message.id) })
  await keep(store.add(branch))
  await loadList()
  tell({ what: 'list' })
  await show(branch.conversation.id)
}

export async function forgetEverything(): Promise<void> {
  for (const answer of answers.value.values()) answer.stop()
  await Promise.all([...answers.value.values()].map((answer) => answer.over))
  await keep(store.forgetEverything())
  sessionStorage.clear()
  storeKey('')
  preferences.value = DEFAULT_PREFERENCES
  defaults.value = DEFAULTS
  await loadList()
  await show(null)
  tell({ what: 'forgotten' })
}

async function whole(conversation: Conversation): Promise<Whole> {
  return { conversation, messages: await store.messages(conversation.id) }
}

function save(name: string, text: string, type: string): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([text], { type }))
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}
