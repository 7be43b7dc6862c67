import { useEffect, useState } from 'preact/hooks'
import { type Key, t } from '../i18n'
import type { Answer, Waiting } from '../state/answer'
import { grouped } from '../talk/figures'
import { returnToComposer } from './shortcuts'

const WAITS: Record<Waiting['reason'], Key> = { gone: 'wait.gone', busy: 'wait.busy', loading: 'wait.loading' }

/** What is going on before the first word: sent, waiting, reading the prompt, thinking. */
export function AnswerPhase({ answer }: { answer: Answer }) {
  if (answer.waiting.value) return <Countdown answer={answer} waiting={answer.waiting.value} />
  const phase = answer.phase.value
  if (phase === 'writing') return null
  const progress = answer.progress.value
  const isReading = phase === 'prefill' && progress !== null && progress.processed < progress.total
  return (
    <div class="phase">
      <span class="thinking" role="img" aria-label={t(phase === 'sending' ? 'phase.sending' : 'phase.thinking')}>●</span>
      {isReading && (
        <>
          <progress max={progress.total} value={progress.processed} aria-label={t('phase.prefill', counts(progress))} />
          <span>
            {t('phase.prefill', counts(progress))}
            {progress.cache > 0 && ` · ${t('phase.reused', { count: grouped(progress.cache) })}`}
          </span>
        </>
      )}
    </div>
  )
}

function counts(progress: { processed: number; total: number }) {
  return { done: grouped(progress.processed), total: grouped(progress.total) }
}

function Countdown({ answer, waiting }: { answer: Answer; waiting: Waiting }) {
  const [now, setNow] = useState(Date.now())
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500)
    return () => clearInterval(timer)
  }, [])
  const tryNow = () => {
    returnToComposer()
    answer.tryNow()
  }
  const seconds = Math.max(0, Math.ceil((waiting.until - now) / 1000))
  return (
    <div class="phase waiting">
      <span class="thinking" aria-hidden="true">●</span>
      <span>{t(WAITS[waiting.reason], { seconds })}</span>
      <button type="button" class="link" onClick={tryNow}>{t('wait.now')}</button>
    </div>
  )
}
