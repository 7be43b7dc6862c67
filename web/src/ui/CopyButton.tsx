import { useEffect, useRef, useState } from 'preact/hooks'
import { t } from '../i18n'
import { speak } from '../state/notices'
import { copy } from './clipboard'
import { IconButton } from './IconButton'

/** Copies a text and says so for a moment. */
export function CopyButton({ text, label }: { text: () => string; label: string }) {
  const [result, setResult] = useState<boolean | null>(null)
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined)
  useEffect(() => () => clearTimeout(timer.current), [])
  const onClick = async () => {
    const isCopied = await copy(text())
    setResult(isCopied)
    speak(t(isCopied ? 'action.copied' : 'action.notCopied'))
    clearTimeout(timer.current)
    timer.current = setTimeout(() => setResult(null), 1500)
  }
  const shown = result === null ? label : t(result ? 'action.copied' : 'action.notCopied')
  return <IconButton icon={result === null ? 'copy' : result ? 'check' : 'close'} label={shown} onClick={() => void onClick()} />
}
