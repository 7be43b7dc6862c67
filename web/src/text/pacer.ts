export const PAINT = 100 // ms between paints; each costs the browser about 5 ms, most of it outside scripts
export const EARLY = 20 // ms that text may come before its time and is still drawn as it comes, which saves waking up again
const CATCH_UP = 2 // paints over which text that came at once is spread
const LEAST = 64 // characters, about 16 tokens: what a paint at least shows, if there is so much
const LATE = 400 // ms after which a paint, in a tab that sleeps, shows everything

/**
 * Draws text at a steady pace, however it comes: ten paints a second at most, and a burst over a few of them.
 *
 * `draw` gets the text so far. `finish` draws the rest at once.
 */
export class Pacer {
  private text = ''
  private shown = 0
  private timer: ReturnType<typeof setTimeout> | undefined
  private painted = -Infinity // when it was, or was due if that was later

  constructor(
    private readonly draw: (text: string) => void,
    private readonly now: () => number = () => performance.now(),
  ) {}

  add(text: string): void {
    this.text += text
    if (this.timer === undefined) this.schedule()
  }

  /** Everything that came, drawn or not. */
  get whole(): string {
    return this.text
  }

  finish(): void {
    clearTimeout(this.timer)
    this.timer = undefined
    if (this.shown < this.text.length) this.show(this.text.length)
  }

  private schedule(): void {
    const wait = this.painted + PAINT - this.now()
    if (wait <= EARLY) this.paint()
    else this.timer = setTimeout(() => this.paint(), wait)
  }

  private paint(): void {
    this.timer = undefined
    const waiting = this.text.length - this.shown
    const isLate = this.now() - this.painted > LATE
    const part = isLate ? waiting : Math.min(waiting, Math.max(LEAST, Math.ceil(waiting / CATCH_UP)))
    this.show(this.shown + part)
    if (this.shown < this.text.length) this.schedule()
  }

  private show(end: number): void {
    const code = this.text.charCodeAt(end - 1)
    const isHalf = code >= 0xd800 && code < 0xdc00 && end < this.text.length // of a character outside the BMP
    this.shown = isHalf ? end + 1 : end
    this.painted = Math.max(this.now(), this.painted + PAINT)
    this.draw(this.text.slice(0, this.shown))
  }
}
