import { signal } from '@preact/signals'
import { storeKey } from '../api/key'

/** The question for the key while it is open; `isWrong`: the last one was refused. */
export const keyQuestion = signal<{ isWrong: boolean } | null>(null)

let asked: Promise<boolean> | null = null
let settle: (given: boolean) => void = () => undefined

/** Ask for the API key, once however many requests need it. False where the person declines. */
export function askForKey(isWrong: boolean): Promise<boolean> {
  asked ??= new Promise<boolean>((resolve) => {
    settle = resolve
    keyQuestion.value = { isWrong }
  }).finally(() => {
    asked = null
    keyQuestion.value = null
  })
  return asked
}

export function giveKey(key: string | null): void {
  if (key !== null) storeKey(key)
  settle(key !== null)
}
