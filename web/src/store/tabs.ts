/** What a tab tells the others: a conversation or the list changed, or all was forgotten. */
export type News = { what: 'conversation'; id: string } | { what: 'list' } | { what: 'preferences' } | { what: 'forgotten' }

const channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('typebar')

export function tell(news: News): void {
  channel?.postMessage(news)
}

/** Call `hear` with what other tabs tell. */
export function listen(hear: (news: News) => void): void {
  channel?.addEventListener('message', (event: MessageEvent<News>) => hear(event.data))
}
