import { useState } from 'preact/hooks'
import { t } from '../i18n'
import { giveKey, keyQuestion } from '../state/key'
import { Dialog } from './Dialog'

/** Asks for the API key of a server that has one. */
export function KeyDialog() {
  const [key, setKey] = useState('')
  const submit = (event: Event) => {
    event.preventDefault()
    if (key.trim()) giveKey(key.trim())
  }
  return (
    <Dialog title={t('key.title')} onClose={() => giveKey(null)}>
      <form onSubmit={submit}>
        {keyQuestion.value?.isWrong && <p class="warning" role="alert">{t('key.wrong')}</p>}
        <p>{t('key.text')}</p>
        <input
          class="field"
          type="password"
          autocomplete="off"
          aria-label={t('key.label')}
          value={key}
          onInput={(event) => setKey(event.currentTarget.value)}
          autofocus
        />
        <div class="dialog-actions">
          <button type="button" class="button" onClick={() => giveKey(null)}>{t('dialog.cancel')}</button>
          <button type="submit" class="button primary">{t('key.use')}</button>
        </div>
      </form>
    </Dialog>
  )
}
