import { useEffect } from 'preact/hooks'
import { t } from '../i18n'
import type { ServerStatus } from '../api/server'
import { askForKey } from '../state/key'
import { reachability, refreshServer, server } from '../state/server'
import { fileSize, grouped } from '../talk/figures'
import { Dialog } from './Dialog'

const EVERY = 2_000 // ms between looks while the panel is open

/** What the server says of itself, as long as it is looked at. */
export function ServerPanel({ onClose }: { onClose: () => void }) {
  useEffect(() => {
    void refreshServer().then(() => {
      if (reachability.value === 'needsKey') void askForKey(false).then((given) => (given ? refreshServer() : undefined))
    })
    const timer = setInterval(() => document.hidden || void refreshServer(), EVERY)
    return () => clearInterval(timer)
  }, [])
  const status = server.value
  return (
    <Dialog title={t('server.title')} onClose={onClose} class="panel">
      {reachability.value !== 'ready' && reachability.value !== 'unknown' && <p class="warning">{state()}</p>}
      {status && (
        <dl class="facts">
          {facts(status).map(([name, value]) => [<dt key={name}>{name}</dt>, <dd key={`${name} value`}>{value}</dd>])}
          <Share name={t('server.kv')} part={status.kv_used} />
          <Share name={t('server.kept')} part={status.kv_filled} />
        </dl>
      )}
    </Dialog>
  )
}

function Share({ name, part }: { name: string; part: number }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>
        <meter aria-label={name} min={0} max={1} value={part} /> {Math.round(part * 100)}&nbsp;%
      </dd>
    </>
  )
}

function facts(status: ServerStatus): [string, string][] {
  return [
    [t('server.model'), status.model],
    [t('server.memory'), `${fileSize(status.weights_bytes)} · ${(status.parameters / 1e9).toFixed(2)} B`],
    [t('server.context'), t('server.tokens', { count: grouped(status.max_model_len) })],
    [t('server.threads'), String(status.threads)],
    [t('server.running'), t('server.of', { count: status.running, most: status.seats })],
    [t('server.waiting'), String(status.waiting)],
    [t('server.version'), status.version],
  ]
}

function state(): string {
  if (reachability.value === 'loading') return t('server.loading')
  return t(reachability.value === 'needsKey' ? 'server.needsKey' : 'server.unreachable')
}
