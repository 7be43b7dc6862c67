import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { EARLY, PAINT, Pacer } from '../src/text/pacer'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

function paced(): { pacer: Pacer; paints: { at: number; text: string }[] } {
  const paints: { at: number; text: string }[] = []
  const start = Date.now()
  const pacer = new Pacer((text) => paints.push({ at: Date.now() - start, text }), () => Date.now())
  return { pacer, paints }
}

test('many pieces a second are at most ten paints a second', () => {
  const { pacer, paints } = paced()
  for (let token = 0; token < 400; token++) {
    pacer.add('abc ')
    vi.advanceTimersByTime(5)
  }
  pacer.finish()
  expect(paints.length).toBeLessThanOrEqual(2000 / PAINT + 2)
  expect(paints.length).toBeGreaterThan(2000 / PAINT / 2)
  for (let index = 2; index < paints.length - 1; index++) expect(paints[index]!.at - paints[index - 2]!.at).toBeGreaterThanOrEqual(2 * PAINT - EARLY)
  expect(paints.at(-1)!.text).toBe('abc '.repeat(400))
})

test('pieces that come gathered are drawn as they come, nothing is left for later', () => {
  const { pacer, paints } = paced()
  for (let event = 0; event < 20; event++) {
    pacer.add('nine tokens, forty characters or a few. ')
    expect(paints).toHaveLength(event + 1)
    expect(paints.at(-1)!.text).toBe(pacer.whole)
    vi.advanceTimersByTime(PAINT + (event % 2 ? EARLY / 2 : -EARLY / 2))
  }
})

test('every paint adds to the one before', () => {
  const { pacer, paints } = paced()
  for (const piece of ['Hello', ' 😀😀', ' world', '!'.repeat(300)]) {
    pacer.add(piece)
    vi.advanceTimersByTime(20)
  }
  vi.advanceTimersByTime(2000)
  for (let index = 1; index < paints.length; index++) expect(paints[index]!.text.startsWith(paints[index - 1]!.text)).toBe(true)
  expect(paints.at(-1)!.text).toBe(pacer.whole)
})

test('the first text is drawn at once, a burst over a few paints', () => {
  const { pacer, paints } = paced()
  pacer.add('first')
  vi.advanceTimersByTime(1)
  expect(paints[0]!.text).toBe('first')
  pacer.add('x'.repeat(900))
  vi.advanceTimersByTime(PAINT)
  expect(paints[1]!.text.length).toBeGreaterThan(200)
  expect(paints[1]!.text.length).toBeLessThan(600)
  vi.advanceTimersByTime(40 * PAINT)
  expect(paints.at(-1)!.text).toHaveLength(905)
})

test('no paint ends inside a character', () => {
  const { pacer, paints } = paced()
  pacer.add('😀'.repeat(200))
  vi.advanceTimersByTime(3000)
  for (const { text } of paints) expect(text).not.toMatch(/[\ud800-\udbff]$/)
})

test('finish draws the rest at once, and nothing after', () => {
  const { pacer, paints } = paced()
  pacer.add('x'.repeat(1000))
  pacer.finish()
  expect(paints.at(-1)!.text).toHaveLength(1000)
  vi.advanceTimersByTime(1000)
  expect(paints).toHaveLength(1)
})
