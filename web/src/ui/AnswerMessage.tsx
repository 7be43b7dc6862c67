import { t } from '../i18n'
import type { Answer } from '../state/answer'
import { regenerate } from '../state/answers'
import { preferences } from '../state/preferences'
import { branchOff } from '../state/transfers'
import type { Figures, Message } from '../talk/message'
import { statusLine } from '../talk/figures'
import { CodeBlock } from '../text/code'
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
  const isGrowing = live !== null || message.end === 'writing' // in this tab or in another
  return (
    <article class={`answer ${live ? 'live' : ''}`} aria-label={t('answer')} aria-busy={live !== null}>
      {text !== '' && <Text text={text} isJSON={message.isJSON === true} isGrowing={isGrowing} />}
      {live ? <AnswerPhase answer={live} /> : <Ending message={message} isLast={isLast} />}
      <div class="below">
        <FigureLine figures={live ? (live.phase.value === 'writing' ? live.figures.value! : undefined) : message.figures} />
        {!live && message.text !== '' && <Actions message={message} />}
      </div>
    </article>
  )
}

function Text({ text, isJSON, isGrowing }: { text: string; isJSON: boolean; isGrowing: boolean }) {
  const { math } = preferences.value
  if (!isJSON) return <Markdown key={`${math}`} text={text} isGrowing={isGrowing} withMath={math} />
  return <div class="markdown json"><CodeBlock text={text} language="json" isOpen={isGrowing} /></div>
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
