import { t } from '../i18n'
import { Dialog } from './Dialog'

interface Props {
  title: string
  text: string
  action: string
  onConfirm: () => void
  onClose: () => void
}

/** Asks before something is lost. */
export function Confirm({ title, text, action, onConfirm, onClose }: Props) {
  return (
    <Dialog title={title} onClose={onClose}>
      <p>{text}</p>
      <div class="dialog-actions">
        <button type="button" class="button" onClick={onClose}>{t('dialog.cancel')}</button>
        <button
          type="button"
          class="button danger"
          onClick={() => {
            onConfirm()
            onClose()
          }}
        >
          {action}
        </button>
      </div>
    </Dialog>
  )
}
