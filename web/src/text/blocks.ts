import type { Token } from 'marked'
import { parse } from './parser'

/** A piece of Markdown that is drawn by itself: a paragraph, a list, a fence. `start` names it as the text grows. */
export interface Block {
  start: number
  token: Token
  isOpen: boolean // text may still be added to it
}

/**
 * The blocks of a growing text. Only from the last block on is it read again, so a paint costs as much at the end of a
 * long answer as at its beginning; blocks before are the same objects as the time before.
 */
export class Blocks {
  private closed: Block[] = []
  private read = 0 // length of the text in closed blocks

  constructor(private readonly withMath: boolean) {}

  update(text: string): Block[] {
    const rest = parse(text.slice(this.read), this.withMath)
    const open = rest.findLastIndex((token) => token.type !== 'space')
    rest.slice(0, Math.max(0, open)).forEach((token) => {
      if (token.type !== 'space') this.closed.push({ start: this.read, token, isOpen: false })
      this.read += token.raw.length
    })
    const last = rest[open]
    return last ? [...this.closed, { start: this.read, token: last, isOpen: true }] : this.closed
  }
}

/**
 * The blocks of a complete text. Here a link can use an address that is defined further below; where none is, blocks
 * that were `known` from its growth stay the same objects.
 */
export function blocksOf(text: string, withMath: boolean, known: readonly Block[] = []): Block[] {
  const tokens = parse(text, withMath)
  const isSame = Object.keys(tokens.links).length === 0
  const before = new Map(known.map((block) => [block.start, block]))
  let start = 0
  const blocks: Block[] = []
  for (const token of tokens) {
    const old = before.get(start)
    const mayStay = isSame && old && !old.isOpen && old.token.raw === token.raw
    if (token.type !== 'space') blocks.push(mayStay ? old : { start, token, isOpen: false })
    start += token.raw.length
  }
  return blocks
}
