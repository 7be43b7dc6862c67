import katex from 'katex'
import 'katex/dist/katex.min.css'

/** Put a formula into an element. KaTeX builds elements here, not HTML text; commands that load or link are off. */
export function typeset(tex: string, displayMode: boolean, element: HTMLElement): void {
  katex.render(tex, element, { displayMode, throwOnError: false, trust: false, maxExpand: 200, maxSize: 20 })
}
