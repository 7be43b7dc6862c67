import './styles/index.css'
import { effect, untracked } from '@preact/signals'
import { render } from 'preact'
import { language } from './i18n'
import { restoreDraft } from './state/composer'
import { loadList, openId, show } from './state/conversations'
import { openStore, store } from './state/keeping'
import { preferences, readPreferences } from './state/preferences'
import { refreshServer } from './state/server'
import { followOtherTabs } from './state/tabs'
import { App } from './ui/App'

async function start(): Promise<void> {
  void refreshServer()
  await openStore()
  preferences.value = readPreferences(await store.setting('preferences'))
  await loadList()
  await show(location.hash.slice(1) || null)
  followOtherTabs()
  addEventListener('popstate', () => void show(location.hash.slice(1) || null))
  effect(() => {
    document.documentElement.lang = language.value === 'zh' ? 'zh-Hans' : 'en'
    document.documentElement.dataset.theme = preferences.value.theme
  })
  effect(() => {
    void openId.value
    untracked(restoreDraft)
  })
  render(<App />, document.getElementById('page')!)
}

void start()
