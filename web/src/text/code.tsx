import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { t } from '../i18n'
import { CopyButton } from '../ui/CopyButton'

type Languages = typeof import('./languages')

let languages: Languages | null = null
let loading: Promise<Languages> | null = null

/** The highlighter is a file of its own, loaded with the first code that is shown. */
function loadLanguages(): Promise<Languages> {
  loading ??= import('./languages').then((module) => (languages = module))
  return loading
}

const MAX_OPEN = 30_000 // characters of code that is being written which are still coloured
const MAX_CLOSED = 100_000
const COLOURED = 400 // ms between colourings of code that is being written; what comes between them is added without
const SHARE = 0.03 // of the time that colouring may take while code is written
const LINES = 32 // of a piece: only pieces that changed are laid out and painted again

/** Code with its colours and a button that copies it. */
export function CodeBlock({ text, language, isOpen }: { text: string; language: string; isOpen: boolean }) {
  const code = useRef<HTMLElement>(null)
  const [isLoaded, setLoaded] = useState(languages !== null)
  const isShort = text.length <= (isOpen ? MAX_OPEN : MAX_CLOSED)
  useEffect(() => {
    if (!isLoaded && language) void loadLanguages().then(() => setLoaded(true), () => undefined)
  }, [language])
  const drawn = useRef(new Drawn())
  useLayoutEffect(() => {
    const colour = isLoaded && isShort ? () => languages!.colored(text, language.toLowerCase(), LINES) : null
    drawn.current.show(code.current!, text, colour, isOpen)
  }, [text, language, isLoaded, isShort, isOpen])
  return (
    <figure class="code">
      <figcaption>
        <span>{language || t('code.plain')}</span>
        <CopyButton text={() => text} label={t('code.copy')} />
      </figcaption>
      <pre tabIndex={0}><code ref={code} /></pre>
    </figure>
  )
}

/** What of a code block is on the page: pieces of some lines each, which stay while they stay the same. */
class Drawn {
  private text = ''
  private pieces: string[] = []
  private couldColour = false
  private next = -Infinity // when it is time for colours again

  show(code: HTMLElement, text: string, colour: (() => string[] | null) | null, isOpen: boolean): void {
    const start = performance.now()
    const isDue = start >= this.next || this.couldColour !== (colour !== null)
    if (isOpen && !isDue && text.startsWith(this.text)) {
      this.append(code, text.slice(this.text.length))
    } else {
      const colours = colour?.() ?? null
      this.draw(code, colours ?? plainPieces(text), colours ? languages!.elements : (piece) => piece)
      this.next = start + Math.max(COLOURED, (performance.now() - start) / SHARE)
    }
    this.text = text
    this.couldColour = colour !== null
  }

  private draw(code: HTMLElement, pieces: string[], made: (piece: string) => Node | string): void {
    pieces.forEach((piece, at) => {
      if (piece === this.pieces[at]) return
      const element = code.children[at] ?? code.appendChild(document.createElement('span'))
      element.replaceChildren(made(piece))
    })
    while (code.children.length > pieces.length) code.lastChild!.remove()
    this.pieces = pieces
  }

  private append(code: HTMLElement, text: string): void {
    const piece = code.lastElementChild!
    if (piece.lastChild instanceof Text) piece.lastChild.appendData(text)
    else piece.append(text)
    this.pieces[this.pieces.length - 1] += text // unlike any with its colours
  }
}

const PIECE = new RegExp(`(?:[^\\n]*\\n){${LINES}}|[^]+$`, 'g')

function plainPieces(text: string): string[] {
  return text.match(PIECE) ?? ['']
}
