const NAME = 'typebar-key'

/** The API key that the person typed in; it lives as long as the tab. */
export function storedKey(): string {
  try {
    return sessionStorage.getItem(NAME) ?? ''
  } catch {
    return '' // storage may be switched off
  }
}

export function storeKey(key: string): void {
  try {
    if (key) sessionStorage.setItem(NAME, key)
    else sessionStorage.removeItem(NAME)
  } catch {
    // then it has to be typed again
  }
}
