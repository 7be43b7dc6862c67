import { useEffect, useRef } from 'preact/hooks'

/** TeX, set by KaTeX once that is loaded; until then, and where it is wrong, its source. */
export function Formula({ tex, display }: { tex: string; display: boolean }) {
  const element = useRef<HTMLSpanElement>(null)
  useEffect(() => {
    let isCurrent = true
    element.current!.textContent = tex
    void import('./math').then(({ typeset }) => {
      if (isCurrent && element.current) typeset(tex, display, element.current)
    }, () => undefined)
    return () => {
      isCurrent = false
    }
  }, [tex, display])
  return <span class={display ? 'formula display' : 'formula'} ref={element} />
}
