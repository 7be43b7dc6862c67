import { listen, type News } from '../store/tabs'
import { answers } from './answers'
import { conversations, loadList, openId, reloadMessages, show } from './conversations'
import { store } from './keeping'
import { preferences, readPreferences } from './preferences'

/** Keep this tab in step with the others. */
export function followOtherTabs(): void {
  listen((news) => void hear(news))
}

async function hear(news: News): Promise<void> {
  if (news.what === 'preferences' || news.what === 'forgotten') {
    preferences.value = readPreferences(await store.setting('preferences'))
  }
  if (news.what === 'preferences') return
  if (news.what === 'forgotten') for (const answer of answers.value.values()) answer.stop()
  const shown = openId.value
  const leaf = conversations.value.find((one) => one.id === shown)?.leaf
  await loadList()
  if (shown === null) return
  const current = conversations.value.find((one) => one.id === shown)
  if (!current) return show(null)
  // A branch that this tab shows stays shown; what another tab adds to it is followed.
  const mayFollow = news.what === 'conversation' && news.id === shown && !answers.value.has(shown)
  if (mayFollow) await reloadMessages()
  else if (leaf !== undefined) conversations.value = conversations.value.map((one) => (one.id === shown ? { ...one, leaf } : one))
}
