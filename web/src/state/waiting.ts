import { ApiError, ServerGone, StreamCut } from '../api/errors'

/** Why an answer waits before it is asked for again. */
export type Reason = 'gone' | 'busy' | 'loading'

export interface Wait {
  reason: Reason
  seconds: number
}

const PATIENCE: Record<Reason, number> = { gone: 8, busy: 40, loading: 400 } // tries

/** How long to wait after a failure before the next try, or null where trying again is of no use. */
export function waitAfter(error: unknown, attempt: number): Wait | null {
  const reason = reasonOf(error)
  if (reason === null || attempt >= PATIENCE[reason]) return null
  const asked = error instanceof ApiError ? (error.retryAfter ?? 0) : 0
  const longest = reason === 'gone' ? 30 : reason === 'busy' ? 10 : 2
  return { reason, seconds: Math.max(asked, Math.min(2 ** attempt, longest)) }
}

export function reasonOf(error: unknown): Reason | null {
  if (error instanceof ServerGone || error instanceof StreamCut) return 'gone'
  if (!(error instanceof ApiError)) return null
  if (error.status === 429) return 'busy'
  if (error.code === 'loading') return 'loading'
  return error.status === 502 || error.code === 'server_shutdown' ? 'gone' : null
}

/** A pause that can be cut short. */
export class Pause {
  private wake: () => void = () => undefined
  readonly over: Promise<void>

  constructor(seconds: number) {
    this.over = new Promise((resolve) => {
      const timer = setTimeout(resolve, seconds * 1000)
      const end = () => {
        clearTimeout(timer)
        removeEventListener('online', end)
        resolve()
      }
      addEventListener('online', end)
      this.wake = end
    })
  }

  end(): void {
    this.wake()
  }
}
