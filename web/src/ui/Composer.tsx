import { useEffect, useLayoutEffect, useRef } from 'preact/hooks'
import { t } from '../i18n'
import { current, stop } from '../state/answers'
import { attach, detach, draft, editing, editLast, files, restoreDraft, submit, write } from '../state/composer'
import { openId } from '../state/conversations'
import { server } from '../state/server'
import { fileSize, grouped } from '../talk/figures'
import { Icon } from './Icon'
import { IconButton } from './IconButton'
import { returnToComposer } from './shortcuts'

/** Where a message is written. Enter sends, with Shift or Ctrl it breaks the line, and never while an input method composes. */
export function Composer() {
  const area = useRef<HTMLTextAreaElement>(null)
  useLayoutEffect(() => fitHeight(area.current!), [draft.value])
  useEffect(() => {
    returnToComposer()
  }, [openId.value])
  useEffect(() => {
    if (editing.value) area.current!.focus()
  }, [editing.value])
  const isEmpty = draft.value.trim() === '' && files.value.length === 0
  return (
    <div class="composer">
      {editing.value && (
        <div class="editing">
          <span>{t('composer.editing')}</span>
          <button type="button" class="link" onClick={leaving(restoreDraft)}>{t('composer.cancel')}</button>
        </div>
      )}
      <div class="composer-box">
        <Files />
        <textarea
          id="message"
          ref={area}
          rows={1}
          value={draft.value}
          placeholder={t('composer.hint')}
          aria-label={t('composer.label')}
          aria-describedby="message-keys"
          enterkeyhint="send"
          onInput={(event) => write(event.currentTarget.value)}
          onKeyDown={onKey}
        />
        <div class="composer-row">
          <AttachButton />
          <span id="message-keys" class="keys">{t('composer.keys')}</span>
          {current.value && (
            <button type="button" class="round stop" aria-label={t('composer.stop')} title={t('composer.stop')} onClick={leaving(stop)}>
              <Icon name="stop" />
            </button>
          )}
          {!(current.value && isEmpty) && (
            <button
              type="button"
              class="round send"
              aria-label={t('composer.send')}
              title={t('composer.send')}
              disabled={isEmpty}
              onClick={leaving(() => void submit())}
            >
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
    </div>
  )
}

/** For buttons that go away with what they do. */
function leaving(act: () => void): () => void {
  return () => {
    returnToComposer()
    act()
  }
}

const COMPOSING = 229 // key code of keys that an input method takes; Safari sends it after composition has ended

function onKey(event: KeyboardEvent & { currentTarget: HTMLTextAreaElement }): void {
  if (event.isComposing || event.keyCode === COMPOSING) return
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
    event.preventDefault()
    insert(event.currentTarget, '\n')
  } else if (event.key === 'Enter' && !event.shiftKey && !event.altKey) {
    event.preventDefault()
    void submit()
  } else if (event.key === 'ArrowUp' && draft.value === '' && !editing.value && editLast()) {
    event.preventDefault()
  } else if (event.key === 'Escape' && editing.value) {
    event.preventDefault()
    restoreDraft()
  }
}

function insert(area: HTMLTextAreaElement, text: string): void {
  area.setRangeText(text, area.selectionStart, area.selectionEnd, 'end')
  write(area.value)
}

function fitHeight(area: HTMLTextAreaElement): void {
  if (CSS.supports('field-sizing', 'content')) return
  area.style.height = 'auto'
  area.style.height = `${area.scrollHeight}px`
}

function Files() {
  if (files.value.length === 0) return null
  const tokens = Math.round(files.value.reduce((sum, file) => sum + file.size, 0) / 3.5)
  const limit = server.value?.max_model_len ?? Infinity
  return (
    <div class="files">
      {files.value.map((file) => (
        <span class="file" key={file.name}>
          {file.name} <small>{fileSize(file.size)}</small>
          <IconButton icon="close" label={t('file.remove', { name: file.name })} onClick={() => detach(file.name)} />
        </span>
      ))}
      {tokens > limit && <p class="warning">{t('file.context', { tokens: grouped(tokens), limit: grouped(limit) })}</p>}
    </div>
  )
}

function AttachButton() {
  const input = useRef<HTMLInputElement>(null)
  return (
    <>
      <IconButton icon="attach" label={t('composer.attach')} onClick={() => input.current!.click()} />
      <input
        ref={input}
        type="file"
        multiple
        hidden
        onChange={(event) => {
          void attach([...(event.currentTarget.files ?? [])])
          event.currentTarget.value = ''
        }}
      />
    </>
  )
}
