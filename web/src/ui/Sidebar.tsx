import { useEffect, useRef, useState } from 'preact/hooks'
import { type Key, t } from '../i18n'
import { conversations, show } from '../state/conversations'
import { store } from '../state/keeping'
import { exportAll, forgetEverything, importFiles } from '../state/transfers'
import type { Conversation } from '../talk/conversation'
import { Confirm } from './Confirm'
import { ConversationItem } from './ConversationItem'
import { Icon } from './Icon'
import { IconButton } from './IconButton'
import { focusComposer } from './shortcuts'

/** The list of conversations: beside the page, or over it where the page is narrow. */
export function Sidebar({ isOpen, onClose }: { isOpen: boolean; onClose: () => void }) {
  const [query, setQuery] = useState('')
  const found = useSearch(query)
  const shown = found ? conversations.value.filter((one) => found.has(one.id)) : conversations.value
  const start = () => {
    onClose()
    void show(null).then(focusComposer)
  }
  return (
    <>
      {isOpen && <div class="shade" onClick={onClose} />}
      <nav
        class={`sidebar ${isOpen ? 'open' : ''}`}
        aria-label={t('list.title')}
        onKeyDown={(event) => {
          if (event.key !== 'Escape' || !isOpen) return
          event.stopPropagation()
          onClose()
        }}
      >
        <div class="sidebar-head">
          <span class="brand">typebar</span>
          <IconButton icon="close" label={t('list.close')} onClick={onClose} class="narrow-only" />
        </div>
        <button type="button" class="button new" onClick={start}><Icon name="plus" />{t('list.new')}</button>
        <label class="search">
          <Icon name="search" />
          <input type="search" value={query} placeholder={t('list.search')} aria-label={t('list.search')} onInput={(event) => setQuery(event.currentTarget.value)} />
        </label>
        <div class="conversations">
          {shown.length === 0 && <p class="none">{t(query ? 'list.notFound' : 'list.none')}</p>}
          {byDay(shown).map(([day, list]) => (
            <section key={day}>
              <h2>{t(day)}</h2>
              <ul>{list.map((one) => <ConversationItem key={one.id} conversation={one} onOpen={onClose} />)}</ul>
            </section>
          ))}
        </div>
        <SidebarFoot />
      </nav>
    </>
  )
}

function SidebarFoot() {
  const input = useRef<HTMLInputElement>(null)
  const [isAsking, setAsking] = useState(false)
  return (
    <div class="sidebar-foot">
      <button type="button" class="link" onClick={() => input.current!.click()}>{t('list.import')}</button>
      <button type="button" class="link" onClick={() => void exportAll()} disabled={conversations.value.length === 0}>{t('list.exportAll')}</button>
      <button type="button" class="link" onClick={() => setAsking(true)}>{t('list.forget')}</button>
      <input
        ref={input}
        type="file"
        accept=".json,.md,.markdown,.txt"
        multiple
        hidden
        onChange={(event) => {
          void importFiles([...(event.currentTarget.files ?? [])])
          event.currentTarget.value = ''
        }}
      />
      {isAsking && (
        <Confirm
          title={t('forget.title')}
          text={t('forget.text')}
          action={t('list.forget')}
          onConfirm={() => void forgetEverything()}
          onClose={() => setAsking(false)}
        />
      )}
    </div>
  )
}

/** Ids of conversations with the query in the title or in a message; null while nothing is searched. */
function useSearch(query: string): Set<string> | null {
  const [found, setFound] = useState<Set<string> | null>(null)
  useEffect(() => {
    const text = query.trim().toLowerCase()
    if (text === '') return setFound(null)
    let isCurrent = true
    const timer = setTimeout(() => {
      const titled = conversations.value.filter((one) => one.title.toLowerCase().includes(text)).map((one) => one.id)
      void store.search(text).then((ids) => isCurrent && setFound(new Set([...titled, ...ids])))
    }, 120)
    return () => {
      isCurrent = false
      clearTimeout(timer)
    }
  }, [query, conversations.value])
  return found
}

function byDay(list: Conversation[]): [Key, Conversation[]][] {
  const midnight = new Date().setHours(0, 0, 0, 0)
  const day = 86_400_000
  const groups = new Map<Key, Conversation[]>()
  for (const one of list) {
    const age = midnight - one.updated
    const key: Key = age <= 0 ? 'day.today' : age <= day ? 'day.yesterday' : age <= 6 * day ? 'day.week' : 'day.older'
    groups.set(key, [...(groups.get(key) ?? []), one])
  }
  return [...groups]
}
