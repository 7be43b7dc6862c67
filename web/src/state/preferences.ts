import { signal } from '@preact/signals'

/** How the page looks, for all conversations. */
export interface Preferences {
  language: 'auto' | 'en' | 'zh'
  theme: 'auto' | 'light' | 'dark'
  math: boolean
}

export const DEFAULT_PREFERENCES: Preferences = { language: 'auto', theme: 'auto', math: false }

export const preferences = signal<Preferences>(DEFAULT_PREFERENCES)

/** Preferences out of what was stored. */
export function readPreferences(value: unknown): Preferences {
  const found = typeof value === 'object' && value !== null ? (value as Partial<Preferences>) : {}
  return {
    language: found.language === 'en' || found.language === 'zh' ? found.language : 'auto',
    theme: found.theme === 'light' || found.theme === 'dark' ? found.theme : 'auto',
    math: found.math === true,
  }
}
