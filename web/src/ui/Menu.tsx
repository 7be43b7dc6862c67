import { useEffect, useId, useRef, useState } from 'preact/hooks'
import { Icon } from './Icon'

/** A button with a menu: arrows move, Esc closes, leaving closes. */
export function Menu({ label, items }: { label: string; items: [string, () => void][] }) {
  const [isOpen, setOpen] = useState(false)
  const button = useRef<HTMLButtonElement>(null)
  const list = useRef<HTMLDivElement>(null)
  const id = useId()
  useEffect(() => {
    if (isOpen) list.current!.querySelector('button')!.focus()
  }, [isOpen])
  const close = () => {
    setOpen(false)
    button.current!.focus()
  }
  const move = (step: number) => {
    const all = [...list.current!.querySelectorAll('button')]
    const at = all.indexOf(document.activeElement as HTMLButtonElement)
    all[(at + step + all.length) % all.length]!.focus()
  }
  const onKey = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (event.key === 'Escape') close()
    else if (step) move(step)
    else return
    event.preventDefault()
    event.stopPropagation()
  }
  const onLeave = (event: FocusEvent) => {
    if (!(event.relatedTarget instanceof Node && list.current!.contains(event.relatedTarget))) setOpen(false)
  }
  return (
    <div class="menu-anchor">
      <button
        ref={button}
        type="button"
        class="icon-button more"
        aria-label={label}
        title={label}
        aria-haspopup="menu"
        aria-expanded={isOpen}
        aria-controls={isOpen ? id : undefined}
        onMouseDown={(event) => isOpen && event.preventDefault()}
        onClick={() => setOpen(!isOpen)}
      >
        <Icon name="more" />
      </button>
      {isOpen && (
        <div class="menu" role="menu" id={id} ref={list} onKeyDown={onKey} onFocusOut={onLeave}>
          {items.map(([text, act]) => (
            <button
              key={text}
              type="button"
              role="menuitem"
              onClick={() => {
                close()
                act()
              }}
            >
              {text}
            </button>
          ))}
        </div>
      )}
    </div>
  )
}
