import type { SentMessage } from './chat'
import { request } from './client'

/** What GET /v1/status tells. Parts of the KV cache are 0 to 1. */
export interface ServerStatus {
  model: string
  version: string
  architecture: string
  parameters: number
  weights_bytes: number
  max_model_len: number
  threads: number
  seats: number
  running: number
  waiting: number
  kv_used: number
  kv_filled: number
  kv_tokens: number
}

export async function serverStatus(signal?: AbortSignal): Promise<ServerStatus> {
  const response = await request('/v1/status', signal ? { signal } : {})
  return (await response.json()) as ServerStatus
}

/** Tokens of a conversation as the model would read it, and how many fit with the answer. */
export async function countTokens(messages: SentMessage[], signal: AbortSignal): Promise<{ count: number; limit: number }> {
  const response = await request('/tokenize', { body: { messages }, signal })
  const { count, max_model_len } = (await response.json()) as { count: number; max_model_len: number }
  return { count, limit: max_model_len }
}
