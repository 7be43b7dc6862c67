import { useState } from 'preact/hooks'
import { t } from '../i18n'
import { changeConversation } from '../state/conversations'
import type { Conversation } from '../talk/conversation'
import { Dialog } from './Dialog'

export function Rename({ conversation, onClose }: { conversation: Conversation; onClose: () => void }) {
  const [title, setTitle] = useState(conversation.title)
  const submit = (event: Event) => {
    event.preventDefault()
    if (title.trim()) void changeConversation(conversation.id, { title: title.trim() })
    onClose()
  }
  return (
    <Dialog title={t('rename.title')} onClose={onClose}>
      <form onSubmit={submit}>
        <input class="field" value={title} aria-label={t('rename.title')} onInput={(event) => setTitle(event.currentTarget.value)} autofocus />
        <div class="dialog-actions">
          <button type="button" class="button" onClick={onClose}>{t('dialog.cancel')}</button>
          <button type="submit" class="button primary">{t('dialog.ok')}</button>
        </div>
      </form>
    </Dialog>
  )
}
