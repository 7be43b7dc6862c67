const ALLOWED = new Set(['http:', 'https:', 'mailto:'])

/** The address of a link if it may be followed: http, https or mail, written in full. */
export function safeAddress(address: string): string | null {
  try {
    const url = new URL(address)
    return ALLOWED.has(url.protocol) ? url.href : null
  } catch {
    return null // relative ones would lead into this server
  }
}
