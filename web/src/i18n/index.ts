import { computed } from '@preact/signals'
import { preferences } from '../state/preferences'
import { en, type Key } from './en'
import { zh } from './zh'

export type { Key }
export type Language = 'en' | 'zh'

const TEXTS = { en, zh }

/** The language of the interface: as chosen, else as the browser prefers. */
export const language = computed<Language>(() => {
  const chosen = preferences.value.language
  if (chosen !== 'auto') return chosen
  const known = navigator.languages.map((name) => name.slice(0, 2).toLowerCase()).find((name) => name in TEXTS)
  return (known as Language | undefined) ?? 'en'
})

/** A text of the interface; {name} in it is replaced by `values.name`. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  return TEXTS[language.value][key].replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole))
}
