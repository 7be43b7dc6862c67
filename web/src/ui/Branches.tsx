import { t } from '../i18n'
import { messages, showBranch } from '../state/conversations'
import type { Message } from '../talk/message'
import { siblings } from '../talk/tree'
import { IconButton } from './IconButton'

/** Goes between the versions of a message, where there are several. */
export function Branches({ message }: { message: Message }) {
  const all = siblings(messages.value, message)
  if (all.length < 2) return null
  const index = all.findIndex((one) => one.id === message.id)
  const go = (to: number) => void showBranch(all[to]!)
  return (
    <span class="branches" role="group" aria-label={t('branch.of', { index: index + 1, count: all.length })}>
      <IconButton icon="left" label={t('branch.previous')} onClick={() => go(index - 1)} disabled={index === 0} />
      <span aria-hidden="true">{index + 1}/{all.length}</span>
      <IconButton icon="right" label={t('branch.next')} onClick={() => go(index + 1)} disabled={index === all.length - 1} />
    </span>
  )
}
