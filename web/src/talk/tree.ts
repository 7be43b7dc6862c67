import type { Message } from './message'

/** Messages from the first to `leaf`. A missing parent ends the walk. */
export function pathTo(messages: readonly Message[], leaf: string | null): Message[] {
  const byId = new Map(messages.map((message) => [message.id, message]))
  const path: Message[] = []
  for (let at = leaf === null ? undefined : byId.get(leaf); at; at = at.parent === null ? undefined : byId.get(at.parent)) {
    path.push(at)
    byId.delete(at.id) // a circle in imported data must not hang the page
  }
  return path.reverse()
}

/** The messages that stand where this one does, oldest first. */
export function siblings(messages: readonly Message[], of: Message): Message[] {
  return messages
    .filter((message) => message.parent === of.parent && message.role === of.role)
    .sort((one, other) => (one.id < other.id ? -1 : 1))
}

/** The end of the newest branch below a message. */
export function newestLeaf(messages: readonly Message[], from: string): string {
  const seen = new Set<string>()
  for (let at = from; ; ) {
    seen.add(at)
    let newest = ''
    for (const message of messages) if (message.parent === at && message.id > newest && !seen.has(message.id)) newest = message.id
    if (newest === '') return at
    at = newest
  }
}
