import type { Figures } from './message'

export type FigureWords = { firstToken: string; total: string; perSecond: string; token: string; tokens: string; cached: string }

/** The line under an answer: ⏱ first token 182 ms · total 1.08 s · 47 tok/s · 212 tokens · 1 024 cached */
export function statusLine(figures: Figures, words: FigureWords): string {
  const parts = [`${words.firstToken} ${duration(figures.firstToken)}`, `${words.total} ${duration(figures.total)}`]
  if (figures.perSecond > 0) parts.push(`${speed(figures.perSecond)} ${words.perSecond}`)
  parts.push(`${grouped(figures.tokens)} ${figures.tokens === 1 ? words.token : words.tokens}`)
  if (figures.cached > 0) parts.push(`${grouped(figures.cached)} ${words.cached}`)
  return `⏱ ${parts.join(' · ')}`
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)}\u00a0ms`
  const seconds = ms / 1000
  if (seconds < 99.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)}\u00a0s`
  const whole = Math.round(seconds)
  return `${Math.floor(whole / 60)}\u00a0min ${whole % 60}\u00a0s`
}

/** A count with thin gaps between its thousands: 12 024. */
export function grouped(count: number): string {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+$)/g, '\u202f')
}

export function speed(perSecond: number): string {
  return perSecond < 9.95 ? perSecond.toFixed(1) : grouped(perSecond)
}

export function fileSize(bytes: number): string {
  if (bytes < 1000) return `${bytes}\u00a0B`
  const [value, unit] = bytes < 999_500 ? [bytes / 1e3, 'kB'] : bytes < 999_500_000 ? [bytes / 1e6, 'MB'] : [bytes / 1e9, 'GB']
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)}\u00a0${unit}`
}
