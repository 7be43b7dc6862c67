import { signal } from '@preact/signals'
import { chat, type ChatBody, type ChatEvent, type Progress } from '../api/chat'
import { ApiError } from '../api/errors'
import { countTokens } from '../api/server'
import { t } from '../i18n'
import { chatBody, fitting, from, lastTurns } from '../talk/context'
import type { Conversation } from '../talk/conversation'
import type { End, Figures, Message } from '../talk/message'
import { Pacer } from '../text/pacer'
import { changeConversation, putMessages } from './conversations'
import { askForKey } from './key'
import { speak } from './notices'
import { problemOf } from './problem'
import { Pause, type Reason, reasonOf, waitAfter } from './waiting'

export type Phase = 'sending' | 'thinking' | 'prefill' | 'writing'

export interface Waiting {
  reason: Reason
  until: number // Date.now()
}

const STORED = 2_000 // ms between copies of an answer that is being written

/** One answer while it is asked for and written. Signals are what the page draws of it. */
export class Answer {
  readonly phase = signal<Phase>('sending')
  readonly progress = signal<Progress | null>(null)
  readonly waiting = signal<Waiting | null>(null)
  readonly drawn: ReturnType<typeof signal<string>>
  readonly figures: ReturnType<typeof signal<Figures>>
  readonly over: Promise<void>

  private readonly abort = new AbortController()
  private readonly pacer = new Pacer((text) => this.draw(text))
  private readonly base: string // what was there before, where an answer is continued
  private readonly before: Figures | undefined // and its figures
  private pause: Pause | null = null
  private start = performance.now()
  private firstText = 0
  private tokens = 0
  private reused = 0
  private isMeasured = false // by the server

  /** branch: the conversation up to the question. message: the answer, with the text it has so far. */
  constructor(
    private readonly conversation: Conversation,
    private readonly branch: Message[],
    private message: Message,
  ) {
    this.base = message.text
    this.before = message.text ? message.figures : undefined
    this.drawn = signal(message.text)
    this.figures = signal(this.measure())
    this.over = this.run()
  }

  get id(): string {
    return this.message.id
  }

  /** End it now; the text so far stays. */
  stop(): void {
    this.abort.abort()
    this.pause?.end()
  }

  /** Do not wait for the next try. */
  tryNow(): void {
    this.pause?.end()
  }

  private async run(): Promise<void> {
    const keeping = setInterval(() => void this.store('writing'), STORED)
    try {
      await this.finish(await this.tryUntilAnswered())
    } catch (error) {
      await this.fail(error)
    } finally {
      clearInterval(keeping)
    }
  }

  private async tryUntilAnswered(): Promise<End> {
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.stream(await this.body())
      } catch (error) {
        if (this.abort.signal.aborted) return 'stopped'
        if (this.pacer.whole !== '' && reasonOf(error) === 'gone') return 'cut'
        if (error instanceof ApiError && error.status === 401 && (await askForKey(attempt > 0))) continue
        const wait = this.pacer.whole === '' ? waitAfter(error, attempt) : null
        if (wait === null) throw error
        await this.wait(wait.reason, wait.seconds)
        if (this.abort.signal.aborted) return 'stopped'
      }
    }
  }

  private async wait(reason: Reason, seconds: number): Promise<void> {
    this.pause = new Pause(seconds)
    this.waiting.value = { reason, until: Date.now() + seconds * 1000 }
    await this.pause.over
    this.waiting.value = null
    this.pause = null
  }

  private async body(): Promise<ChatBody> {
    const { settings } = this.conversation
    const branch = this.base === '' ? this.branch : [...this.branch, { ...this.message, text: this.base }]
    if (!settings.keepAll) return chatBody(settings, lastTurns(branch, settings.turns))
    const kept = await fitting(from(branch, this.conversation.keptFrom), settings.system, settings.maxTokens, (messages) =>
      countTokens(messages, this.abort.signal),
    )
    const keptFrom = kept[0]?.id
    if (keptFrom && keptFrom !== branch[0]?.id && keptFrom !== this.conversation.keptFrom) {
      await changeConversation(this.conversation.id, { keptFrom })
    }
    return chatBody(settings, kept)
  }

  private async stream(body: ChatBody): Promise<End> {
    this.start = performance.now()
    this.phase.value = 'sending'
    for await (const event of chat(body, this.abort.signal)) {
      if (event.type === 'end') return this.end(event)
      this.take(event)
    }
    return 'cut'
  }

  private take(event: Exclude<ChatEvent, { type: 'end' }>): void {
    if (event.type === 'open') {
      this.message = { ...this.message, model: event.model }
      this.phase.value = 'thinking'
    } else if (event.type === 'progress') {
      this.progress.value = event.progress
      this.reused = event.progress.cache
      if (event.progress.processed < event.progress.total) this.phase.value = 'prefill'
    } else {
      if (this.firstText === 0) this.begin()
      this.tokens = Math.max(this.tokens + 1, event.tokens)
      this.pacer.add(event.text)
    }
  }

  private begin(): void {
    this.firstText = performance.now()
    this.phase.value = 'writing'
    speak(t('said.writing'))
  }

  private end(event: Extract<ChatEvent, { type: 'end' }>): End {
    this.tokens = event.tokens
    const measured = { ...this.measure(), cached: event.cached, prompt: event.prompt }
    this.message = { ...this.message, figures: { ...measured, perSecond: event.perSecond || measured.perSecond } }
    this.isMeasured = true
    if (event.reason === 'length') return 'length'
    return event.stopReason === 'cancelled' ? 'stopped' : 'done'
  }

  private draw(text: string): void {
    this.drawn.value = this.base + text
    this.figures.value = this.measure()
  }

  private measure(): Figures {
    const now = performance.now()
    const writing = now - this.firstText
    return {
      firstToken: this.before?.firstToken ?? (this.firstText || now) - this.start,
      total: (this.before?.total ?? 0) + now - this.start,
      perSecond: this.firstText && this.tokens > 1 && writing > 250 ? ((this.tokens - 1) * 1000) / writing : 0,
      tokens: (this.before?.tokens ?? 0) + this.tokens,
      cached: this.reused,
      prompt: this.progress.value?.total ?? 0,
    }
  }

  private async finish(end: End): Promise<void> {
    this.complete()
    speak(t(end === 'done' || end === 'length' ? 'said.done' : end === 'stopped' ? 'said.stopped' : 'said.failed'))
    await this.store(end)
  }

  private complete(): void {
    this.pacer.finish()
    if (this.firstText && !this.isMeasured) this.message = { ...this.message, figures: this.measure() }
  }

  private async fail(error: unknown): Promise<void> {
    this.complete()
    this.message = { ...this.message, problem: problemOf(error) }
    speak(t('said.failed'))
    await this.store('failed')
  }

  private async store(end: End): Promise<void> {
    const { problem, ...message } = this.message
    const isThere = await putMessages({
      ...message,
      ...(problem && end === 'failed' ? { problem } : {}),
      text: this.base + this.pacer.whole,
      end,
      touched: Date.now(),
    })
    if (!isThere) this.stop() // another tab deleted the conversation
  }
}
