import { t } from '../i18n'
import type { Answer } from '../state/answer'
import { regenerate } from '../state/answers'
import { preferences } from '../state/preferences'
import { branchOff } from '../state/transfers'
import type { Figures, Message } from '../talk/message'
import { statusLine } from '../talk/figures'
import { Markdown } from '../text/markdown'
import { AnswerPhase } from './AnswerPhase'
import { Branches } from './Branches'
import { CopyButton } from './CopyButton'
import { Ending } from './Ending'
import { IconButton } from './IconButton'
import { returnToComposer } from './shortcuts'

interface Props {
  message: Message
  live: Answer | null
  isLast: boolean
}

/** An answer, written or being written. */
export function AnswerMessage({ message, live, isLast }: Props) {
  const text = live ? live.drawn.value! : message.text
  const { math } = preferences.value
  const isElsewhere = !live && message.end === 'writing' // in another tab
  return (
    <article class={`answer ${live ? 'live' : ''}`} aria-label={t('answer')} aria-busy={live !== null}>
      {text !== '' && <Markdown key={`${math}`} text={text} isGrowing={live !== null || isElsewhere} withMath={math} />}
      {live ? <AnswerPhase answer={live} /> : <Ending message={message} isLast={isLast} />}
      <div class="below">
        <FigureLine figures={live ? (live.phase.value === 'writing' ? live.figures.value! : undefined) : message.figures} />
        {!live && message.text !== '' && <Actions message={message} />}
      </div>
    </article>
  )
}

function FigureLine({ figures }: { figures: Figures | undefined }) {
  if (!figures) return null
  const words = {
    firstToken: t('figures.firstToken'), total: t('figures.total'), perSecond: t('figures.perSecond'),
    token: t('figures.token'), tokens: t('figures.tokens'), cached: t('figures.cached'),
  }
  return <p class="figures" aria-label={t('figures.label')}>{statusLine(figures, words)}</p>
}

function Actions({ message }: { message: Message }) {
  const again = () => {
    returnToComposer()
    void regenerate(message)
  }
  return (
    <div class="actions">
      <Branches message={message} />
      <CopyButton text={() => message.text} label={t('action.copyMarkdown')} />
      <IconButton icon="again" label={t('action.regenerate')} onClick={again} />
      <IconButton icon="branch" label={t('action.branch')} onClick={() => void branchOff(message)} />
    </div>
  )
}
