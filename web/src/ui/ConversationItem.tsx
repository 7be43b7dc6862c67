import { useState } from 'preact/hooks'
import { t } from '../i18n'
import { answers } from '../state/answers'
import { openId, remove, show } from '../state/conversations'
import { exportOne } from '../state/transfers'
import type { Conversation } from '../talk/conversation'
import { Confirm } from './Confirm'
import { Menu } from './Menu'
import { Rename } from './Rename'
import { returnToComposer } from './shortcuts'

type Asking = 'rename' | 'delete' | null

/** A conversation in the list, with what can be done to it. */
export function ConversationItem({ conversation, onOpen }: { conversation: Conversation; onOpen: () => void }) {
  const [asking, setAsking] = useState<Asking>(null)
  const title = conversation.title || t('list.untitled')
  const isOpen = openId.value === conversation.id
  const isAnswering = answers.value.has(conversation.id)
  const close = () => setAsking(null)
  return (
    <li class={isOpen ? 'current' : ''}>
      <button
        type="button"
        class="open"
        aria-current={isOpen ? 'true' : undefined}
        onClick={() => {
          void show(conversation.id)
          onOpen()
        }}
      >
        {isAnswering && <span class="thinking" role="img" aria-label={t('list.running')}>●</span>}
        <span class="title">{title}</span>
      </button>
      <Menu
        label={t('list.menu', { title })}
        items={[
          [t('list.rename'), () => setAsking('rename')],
          [t('list.exportMarkdown'), () => void exportOne(conversation, 'markdown')],
          [t('list.exportJSON'), () => void exportOne(conversation, 'json')],
          [t('list.delete'), () => setAsking('delete')],
        ]}
      />
      {asking === 'rename' && <Rename conversation={conversation} onClose={close} />}
      {asking === 'delete' && (
        <Confirm
          title={t('delete.title')}
          text={t('delete.text', { title })}
          action={t('list.delete')}
          onConfirm={() => void remove(conversation.id).then(returnToComposer)}
          onClose={close}
        />
      )}
    </li>
  )
}
