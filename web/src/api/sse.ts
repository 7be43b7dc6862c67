/** Reads server-sent events out of a stream of text that may be split anywhere. Only `data` matters here. */
export class EventParser {
  private rest = ''
  private data: string[] = []

  /** The data of every event that this piece of text completes. */
  push(text: string): string[] {
    this.rest += text
    const events: string[] = []
    for (;;) {
      const end = this.rest.search(/[\r\n]/)
      if (end < 0) return events
      const isCR = this.rest[end] === '\r'
      if (isCR && end + 1 === this.rest.length) return events // its \n may follow
      const line = this.rest.slice(0, end)
      this.rest = this.rest.slice(end + (isCR && this.rest[end + 1] === '\n' ? 2 : 1))
      this.readLine(line, events)
    }
  }

  private readLine(line: string, events: string[]): void {
    if (line === '') {
      if (this.data.length > 0) events.push(this.data.join('\n'))
      this.data = []
      return
    }
    const colon = line.indexOf(':')
    const field = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '')
    if (field === 'data') this.data.push(value)
  }
}
