import { signal } from '@preact/signals'
import { ApiError } from '../api/errors'
import { type ServerStatus, serverStatus } from '../api/server'

export type Reachability = 'unknown' | 'ready' | 'loading' | 'needsKey' | 'unreachable'

/** What the server said of itself last, and whether it answers. */
export const server = signal<ServerStatus | null>(null)
export const reachability = signal<Reachability>('unknown')

export async function refreshServer(): Promise<void> {
  try {
    server.value = await serverStatus()
    reachability.value = 'ready'
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) reachability.value = 'needsKey'
    else if (error instanceof ApiError && error.code === 'loading') reachability.value = 'loading'
    else reachability.value = 'unreachable'
  }
}
