import { useEffect, useState } from 'preact/hooks'
import { t } from '../i18n'
import { attach } from '../state/composer'
import { open, openId } from '../state/conversations'
import { keyQuestion } from '../state/key'
import { notice, spoken } from '../state/notices'
import { Composer } from './Composer'
import { KeyDialog } from './KeyDialog'
import { onShortcut } from './shortcuts'
import { ServerPanel } from './ServerPanel'
import { SettingsDrawer } from './SettingsDrawer'
import { Sidebar } from './Sidebar'
import { TopBar } from './TopBar'
import { Transcript } from './Transcript'

type Panel = 'settings' | 'server' | null

/** The whole page. */
export function App() {
  const [isListOpen, setListOpen] = useState(false)
  const [panel, setPanel] = useState<Panel>(null)
  const drop = useFileDrop()
  useEffect(() => {
    addEventListener('keydown', onShortcut)
    return () => removeEventListener('keydown', onShortcut)
  }, [])
  useEffect(() => setListOpen(false), [openId.value])
  useEffect(() => {
    document.title = open.value?.title ? `${open.value.title} – typebar` : 'typebar'
  }, [open.value?.title])
  return (
    <div class={`app ${drop.isOver ? 'dropping' : ''}`} {...drop.handlers}>
      <Sidebar isOpen={isListOpen} onClose={() => setListOpen(false)} />
      <main class="main">
        <TopBar onList={() => setListOpen(true)} onSettings={() => setPanel('settings')} onServer={() => setPanel('server')} />
        <Transcript key={openId.value ?? 'new'} />
        <Composer />
      </main>
      {drop.isOver && <div class="drop-hint">{t('composer.drop')}</div>}
      {panel === 'settings' && <SettingsDrawer onClose={() => setPanel(null)} />}
      {panel === 'server' && <ServerPanel onClose={() => setPanel(null)} />}
      {keyQuestion.value && <KeyDialog />}
      <div class="notice" role="alert">{notice.value && <span>{notice.value}</span>}</div>
      <div class="unseen" role="status">{spoken.value}</div>
    </div>
  )
}

function useFileDrop() {
  const [isOver, setOver] = useState(false)
  const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes('Files') ?? false
  return {
    isOver,
    handlers: {
      onDragOver: (event: DragEvent) => {
        if (!hasFiles(event)) return
        event.preventDefault()
        setOver(true)
      },
      onDragLeave: (event: DragEvent) => event.relatedTarget === null && setOver(false),
      onDrop: (event: DragEvent) => {
        if (!hasFiles(event)) return
        event.preventDefault()
        setOver(false)
        void attach(event.dataTransfer!.files)
      },
    },
  }
}
