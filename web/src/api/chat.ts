import { request } from './client'
import { errorFrom, StreamCut } from './errors'
import { EventParser } from './sse'

export interface SentMessage {
  role: 'system' | 'user' | 'assistant'
  content: string
}

/** A chat request as the server takes it; absent fields are the server's to choose. */
export interface ChatBody {
  messages: SentMessage[]
  temperature?: number
  top_p?: number
  top_k?: number
  repetition_penalty?: number
  max_tokens?: number
  seed?: number
  response_format?: { type: 'json_object' }
  continue_final_message?: boolean
  add_generation_prompt?: boolean
}

export interface Progress {
  total: number
  cache: number
  processed: number
}

/** What comes of a chat, in order. Counts are of tokens; `perSecond` is 0 where it is not known. */
export type ChatEvent =
  | { type: 'open'; model: string }
  | { type: 'progress'; progress: Progress }
  | { type: 'text'; text: string; tokens: number }
  | { type: 'end'; reason: 'stop' | 'length'; stopReason: unknown; cached: number; prompt: number; perSecond: number; tokens: number }

const INTERVAL = 100 // ms for which the server gathers text: each event costs the browser about a millisecond
const PING = 10 // seconds of silence after which the server is asked to send a comment
const SILENCE = 45_000 // ms after which a connection that says nothing, not even comments, counts as lost

interface Chunk {
  model?: string
  error?: unknown
  prompt_progress?: Progress
  choices?: { delta?: { content?: string | null }; finish_reason?: 'stop' | 'length' | null; stop_reason?: unknown }[]
  usage?: { prompt_tokens: number; completion_tokens: number } | null
  timings?: { cache_n: number; prompt_n: number; predicted_n: number; predicted_per_second: number }
}

/** Ask for an answer. Throws ApiError, ServerGone, and StreamCut where the answer has no end. */
export async function* chat(body: ChatBody, signal: AbortSignal): AsyncGenerator<ChatEvent> {
  const response = await request('/v1/chat/completions', {
    body: {
      ...body,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true, interval_ms: INTERVAL },
      return_progress: true,
      sse_ping_interval: PING,
    },
    signal,
  })
  let isWhole = false
  for await (const data of events(response, signal)) {
    if (data === '[DONE]') break
    for (const event of read(JSON.parse(data) as Chunk)) {
      isWhole ||= event.type === 'end'
      yield event
    }
  }
  if (!isWhole) throw new StreamCut('the answer has no end')
}

function* read(chunk: Chunk): Generator<ChatEvent> {
  if (chunk.error) throw errorFrom(500, chunk)
  if (chunk.prompt_progress) yield { type: 'progress', progress: chunk.prompt_progress }
  const choice = chunk.choices?.[0]
  if (!choice) return
  const tokens = chunk.usage?.completion_tokens ?? 0
  if (choice.delta?.content) yield { type: 'text', text: choice.delta.content, tokens }
  else if (chunk.model && !choice.finish_reason && !chunk.prompt_progress) yield { type: 'open', model: chunk.model }
  if (choice.finish_reason) {
    const timings = chunk.timings
    yield {
      type: 'end',
      reason: choice.finish_reason,
      stopReason: choice.stop_reason ?? null,
      cached: timings?.cache_n ?? 0,
      prompt: timings ? timings.cache_n + timings.prompt_n : (chunk.usage?.prompt_tokens ?? 0),
      perSecond: timings?.predicted_per_second ?? 0,
      tokens: timings?.predicted_n ?? tokens,
    }
  }
}

async function* events(response: Response, signal: AbortSignal): AsyncGenerator<string> {
  const reader = response.body!.getReader()
  const decoder = new TextDecoder()
  const parser = new EventParser()
  const watch = new Watch(() => void reader.cancel().catch(() => undefined))
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (watch.isOver) throw new StreamCut('nothing comes any more')
      if (done) return
      watch.restart()
      yield* parser.push(decoder.decode(value, { stream: true }))
    }
  } catch (error) {
    if (signal.aborted || error instanceof StreamCut) throw error
    throw new StreamCut(String(error))
  } finally {
    watch.end()
    void reader.cancel().catch(() => undefined)
  }
}

/** Calls `onSilence` once nothing was heard for SILENCE. */
class Watch {
  isOver = false
  private heard = performance.now()
  private readonly timer = setInterval(() => {
    if (performance.now() - this.heard < SILENCE) return
    this.isOver = true
    this.onSilence()
  }, SILENCE / 10)

  constructor(private readonly onSilence: () => void) {}

  restart(): void {
    this.heard = performance.now()
  }

  end(): void {
    clearInterval(this.timer)
  }
}
