import { signal } from '@preact/signals'

const SHOWN = 6_000 // ms

/** A short text at the bottom of the page, and what screen readers are told. */
export const notice = signal('')
export const spoken = signal('')

let timer: ReturnType<typeof setTimeout> | undefined

export function say(text: string): void {
  notice.value = text
  clearTimeout(timer)
  timer = setTimeout(() => (notice.value = ''), SHOWN)
}

export function speak(text: string): void {
  spoken.value = text
}
