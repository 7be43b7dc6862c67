import { ApiError } from '../api/errors'
import type { Problem } from '../talk/message'
import { reasonOf } from './waiting'

/** What a person is told of a failure. */
export function problemOf(error: unknown): Problem {
  const text = error instanceof Error ? error.message : String(error)
  const reason = reasonOf(error)
  if (reason === 'busy') return { kind: 'busy', text }
  if (reason !== null) return { kind: 'gone', text }
  if (!(error instanceof ApiError)) return { kind: 'server', text }
  if (error.status === 401) return { kind: 'key', text }
  if (error.code !== 'context_length_exceeded') return { kind: 'server', text }
  const { n_prompt_tokens: need, n_ctx: limit } = error.details
  const problem: Problem = { kind: 'context', text }
  return typeof need === 'number' && typeof limit === 'number' ? { ...problem, need, limit } : problem
}
