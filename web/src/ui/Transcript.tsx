import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { t } from '../i18n'
import { answers, current } from '../state/answers'
import { changeSettings, messages, open, path, settings } from '../state/conversations'
import { from, lastTurns } from '../talk/context'
import { MAX_TURNS } from '../talk/settings'
import { AnswerMessage } from './AnswerMessage'
import { useFollow } from './follow'
import { IconButton } from './IconButton'
import { Question } from './Question'
import { Welcome } from './Welcome'

const FIRST = 24 // messages drawn at once; older ones follow, so that a long conversation is there at once
const MORE = 24

/** The messages of the shown branch. */
export function Transcript() {
  const box = useRef<HTMLDivElement>(null)
  const content = useRef<HTMLDivElement>(null)
  const { isAway, toEnd } = useFollow(box, content)
  const shown = useLatest(path.value.length)
  const oldest = firstSent()
  const answering = current.value
  useEffect(() => {
    if (answering) toEnd() // sending goes to the newest
  }, [answering])
  return (
    <div class="transcript" ref={box} role="log" aria-live="off" aria-label={t('transcript')} tabIndex={0}>
      <div class="column" ref={content}>
        {path.value.length === 0 && <Welcome />}
        {path.value.slice(shown).map((message) => (
          <div key={message.id} class="turn">
            {message.id === oldest && <OutOfContext />}
            <Line id={message.id} />
          </div>
        ))}
      </div>
      {isAway && <IconButton icon="down" label={t('transcript.down')} onClick={toEnd} class="to-end" />}
    </div>
  )
}

function Line({ id }: { id: string }) {
  const message = messages.value.find((one) => one.id === id)
  const answer = message && answers.value.get(message.conversation)
  const live = answer?.id === id ? answer : null
  const isLast = path.value.at(-1)?.id === id
  return useMemo(() => {
    if (!message) return null
    return message.role === 'user' ? <Question message={message} /> : <AnswerMessage message={message} live={live} isLast={isLast} />
  }, [message, live, isLast])
}

/** The first message to draw: the newest ones come first, the others in the next idle moments. */
function useLatest(count: number): number {
  const [drawn, setDrawn] = useState(FIRST)
  useEffect(() => {
    if (drawn >= count) return
    const timer = setTimeout(() => setDrawn(drawn + MORE), 16)
    return () => clearTimeout(timer)
  }, [drawn, count])
  return Math.max(0, count - drawn)
}

/** The oldest message that the model still reads, where it is not the first. */
function firstSent(): string | null {
  const { turns, keepAll } = settings.value
  const kept = keepAll ? from(path.value, open.value?.keptFrom) : lastTurns(path.value, turns)
  return kept.length < path.value.length ? (kept[0]?.id ?? null) : null
}

function OutOfContext() {
  const { turns, keepAll } = settings.value
  return (
    <div class="out-of-context" role="note">
      <span>{t('context.out')}</span>
      {!keepAll && turns < MAX_TURNS && (
        <button type="button" class="link" onClick={() => void changeSettings({ keepAll: true })}>{t('settings.keepAll')}</button>
      )}
    </div>
  )
}
