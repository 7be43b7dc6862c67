import { t } from '../i18n'
import { edit } from '../state/composer'
import { fileSize } from '../talk/figures'
import type { Message } from '../talk/message'
import { Branches } from './Branches'
import { CopyButton } from './CopyButton'
import { IconButton } from './IconButton'

/** What the person wrote, as it was written. */
export function Question({ message }: { message: Message }) {
  return (
    <article class="question" aria-label={t('you')}>
      <div class="bubble">
        {message.files?.map((file) => (
          <details class="file" key={file.name}>
            <summary>{file.name} <small>{fileSize(file.size)}</small></summary>
            <pre tabIndex={0}>{file.text}</pre>
          </details>
        ))}
        {message.text && <div class="text" dir="auto">{message.text}</div>}
      </div>
      <div class="actions">
        <Branches message={message} />
        <CopyButton text={() => message.text} label={t('action.copy')} />
        <IconButton icon="edit" label={t('action.edit')} onClick={() => edit(message)} />
      </div>
    </article>
  )
}
