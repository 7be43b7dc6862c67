let last = 0

/** A new id: sorts by time and is unlike any other. Works over plain http, where crypto.randomUUID is absent. */
export function newId(): string {
  last = Math.max(last + 1, Date.now())
  const random = new Uint8Array(8)
  crypto.getRandomValues(random)
  return last.toString(36).padStart(9, '0') + Array.from(random, (byte) => byte.toString(16).padStart(2, '0')).join('')
}
