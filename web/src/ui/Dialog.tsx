import type { ComponentChildren } from 'preact'
import { useEffect, useId, useRef } from 'preact/hooks'
import { t } from '../i18n'
import { IconButton } from './IconButton'

interface Props {
  title: string
  onClose: () => void
  children: ComponentChildren
  class?: string
}

/** A modal dialog: keeps the focus, closes with Esc and a click beside it, and gives the focus back. */
export function Dialog({ title, onClose, children, class: more = '' }: Props) {
  const element = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => {
    const focused = document.activeElement
    element.current!.showModal()
    return () => {
      if (focused instanceof HTMLElement) focused.focus()
    }
  }, [])
  return (
    <dialog
      ref={element}
      class={more}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault()
        onClose()
      }}
      onMouseDown={(event) => event.target === element.current && onClose()}
    >
      <div class="dialog-body">
        <header>
          <h2 id={id}>{title}</h2>
          <IconButton icon="close" label={t('dialog.close')} onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  )
}
