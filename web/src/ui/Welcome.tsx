import { type Key, t } from '../i18n'
import { write } from '../state/composer'
import { focusComposer } from './shortcuts'

const IDEAS: Key[] = ['welcome.1', 'welcome.2', 'welcome.3', 'welcome.4']

/** What a new conversation shows. */
export function Welcome() {
  const take = (idea: Key) => {
    write(t(idea))
    focusComposer()
  }
  return (
    <section class="welcome">
      <h2>{t('welcome.title')}</h2>
      <p>{t('welcome.text')}</p>
      <ul>
        {IDEAS.map((idea) => (
          <li key={idea}>
            <button type="button" onClick={() => take(idea)}>{t(idea)}</button>
          </li>
        ))}
      </ul>
    </section>
  )
}
