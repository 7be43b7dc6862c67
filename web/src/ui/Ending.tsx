import { type Key, t } from '../i18n'
import { continueAnswer, leaveOutOldTurns, regenerate } from '../state/answers'
import { path } from '../state/conversations'
import { countTurns } from '../talk/context'
import { grouped } from '../talk/figures'
import { canContinue, type Message, type Problem } from '../talk/message'
import { returnToComposer } from './shortcuts'

const ENDS: Record<string, Key> = { length: 'end.length', stopped: 'end.stopped', cut: 'end.cut' }

/** How an answer ended where it did not just end, and what can be done. */
export function Ending({ message, isLast }: { message: Message; isLast: boolean }) {
  const text = message.problem ? problemText(message.problem) : message.end && ENDS[message.end] ? t(ENDS[message.end]!) : null
  if (text === null) return null
  const isTrouble = message.end === 'failed' || message.end === 'cut'
  return (
    <div class={`ending ${isTrouble ? 'trouble' : ''}`} role={isTrouble ? 'alert' : undefined}>
      <span>{text}</span>
      {isLast && <Remedy message={message} />}
    </div>
  )
}

function Remedy({ message }: { message: Message }) {
  if (message.problem?.kind === 'context') {
    if (countTurns(path.value) < 2) return null
    return <Offer text={t('problem.drop')} act={() => leaveOutOldTurns(message)} />
  }
  if (canContinue(message)) return <Offer text={t('action.continue')} act={() => continueAnswer(message)} />
  return <Offer text={t('problem.again')} act={() => regenerate(message)} />
}

function Offer({ text, act }: { text: string; act: () => Promise<void> }) {
  const onClick = () => {
    returnToComposer() // the button goes away
    void act()
  }
  return <button type="button" class="button small" onClick={onClick}>{text}</button>
}

function problemText(problem: Problem): string {
  switch (problem.kind) {
    case 'context':
      if (countTurns(path.value) < 2) return t('problem.single')
      return problem.need && problem.limit
        ? t('problem.context', { need: grouped(problem.need), limit: grouped(problem.limit) })
        : t('problem.contextAny')
    case 'server':
      return t('problem.server', { text: problem.text })
    default:
      return t(`problem.${problem.kind}`)
  }
}
