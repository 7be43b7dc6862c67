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

const MAX_OPEN = 12_000 // characters of code that is being written which are still coloured
const COLOURED = 400 // ms between colourings of code that is being written; what comes between them is added without
const MAX_CLOSED = 100_000

/** Code with its colours and a button that copies it. */
export function CodeBlock({ text, language, isOpen }: { text: string; language: string; isOpen: boolean }) {
  const code = useRef<HTMLElement>(null)
  const [isLoaded, setLoaded] = useState(languages !== null)
  const isShort = text.length <= (isOpen ? MAX_OPEN : MAX_CLOSED)
  useEffect(() => {
    if (!isLoaded && language) void loadLanguages().then(() => setLoaded(true), () => undefined)
  }, [language])
  const colouredAt = useRef(-Infinity)
  useLayoutEffect(() => {
    const shown = code.current!.textContent!
    if (isOpen && performance.now() - colouredAt.current < COLOURED && text.startsWith(shown)) {
      append(code.current!, text.slice(shown.length))
      return
    }
    const parts = isLoaded && isShort ? languages!.colored(text, language.toLowerCase()) : null
    code.current!.replaceChildren(parts ?? text)
    colouredAt.current = performance.now()
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

/** Add text behind what is there. */
function append(element: HTMLElement, text: string): void {
  if (element.lastChild instanceof Text) element.lastChild.appendData(text)
  else element.append(text)
}
