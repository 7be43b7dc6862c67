import { signal } from '@preact/signals'
import { Database } from '../store/database'
import { Memory } from '../store/memory'
import type { Store } from '../store/store'
import { t } from '../i18n'
import { say } from './notices'

/** Where this page keeps things. Set once by `openStore`, before anything else runs. */
export let store: Store = new Memory()

export const isKept = signal(true)

export async function openStore(): Promise<void> {
  try {
    store = await Database.open()
  } catch {
    isKept.value = false
    say(t('notice.memory'))
  }
}

/** Run a change of the store in the background; a full disk is told, and nothing is lost from the screen. */
export async function keep<T>(change: Promise<T>): Promise<T | undefined> {
  try {
    return await change
  } catch (error) {
    say(t('notice.store', { text: error instanceof Error ? error.message : String(error) }))
    return undefined
  }
}
