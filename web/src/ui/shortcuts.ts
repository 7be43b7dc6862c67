import { current, stop } from '../state/answers'

/** Keys that work everywhere on the page: Esc stops the answer, / goes to the message. */
export function onShortcut(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing || document.querySelector('dialog[open], .menu')) return
  if (event.key === 'Escape' && current.value) {
    event.preventDefault()
    stop()
  }
  if (event.key === '/' && !isTyping(event.target) && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault()
    focusComposer()
  }
}

export function focusComposer(): void {
  document.getElementById('message')?.focus()
}

/** Where the focus goes when what had it is gone. Not on a phone, where it would open the keyboard. */
export function returnToComposer(): void {
  if (matchMedia('(hover: hover)').matches) focusComposer()
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.matches('input, textarea, select, [contenteditable]')
}
