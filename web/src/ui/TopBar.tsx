import { t } from '../i18n'
import { open, show } from '../state/conversations'
import { reachability, server } from '../state/server'
import { IconButton } from './IconButton'
import { focusComposer } from './shortcuts'

interface Props {
  onList: () => void
  onSettings: () => void
  onServer: () => void
}

/** The line at the top: what is shown, which model answers, and the way to the rest. */
export function TopBar({ onList, onSettings, onServer }: Props) {
  const start = () => void show(null).then(focusComposer)
  return (
    <header class="top-bar">
      <IconButton icon="menu" label={t('list.open')} onClick={onList} class="narrow-only" />
      <h1>{open.value?.title ?? t('list.new')}</h1>
      <button type="button" class={`server-chip ${reachability.value}`} onClick={onServer} title={t('server.title')} aria-label={`${t('server.title')}: ${serverName()}`}>
        <span class="dot" aria-hidden="true" />
        <span class="name">{serverName()}</span>
      </button>
      <IconButton icon="plus" label={t('list.new')} onClick={start} class="narrow-only" />
      <IconButton icon="settings" label={t('settings.title')} onClick={onSettings} />
    </header>
  )
}

function serverName(): string {
  switch (reachability.value) {
    case 'unreachable':
      return t('server.unreachable')
    case 'loading':
      return t('server.loading')
    case 'needsKey':
      return t('server.needsKey')
    default:
      return server.value?.model ?? ''
  }
}
