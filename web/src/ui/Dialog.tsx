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
  const close = () => {
    if (document.activeElement instanceof HTMLElement) document.activeElement.blur() // what was typed last counts
    onClose()
  }
  return (
    <dialog
      ref={element}
      class={more}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault()
        close()
      }}
      onMouseDown={(event) => event.target === element.current && close()}
    >
      <div class="dialog-body">
        <header>
          <h2 id={id}>{title}</h2>
          <IconButton icon="close" label={t('dialog.close')} onClick={close} />
        </header>
        {children}
      </div>
    </dialog>
  )
}
