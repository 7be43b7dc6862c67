import { expect, test } from 'vitest'
import { duration, fileSize, grouped, statusLine } from '../src/talk/figures'

const WORDS = { firstToken: 'first token', total: 'total', perSecond: 'tok/s', token: 'token', tokens: 'tokens', cached: 'cached' }
const plain = (text: string) => text.replace(/[\u00a0\u202f]/g, ' ')

test('the line under an answer', () => {
  const figures = { firstToken: 182.4, total: 1080, perSecond: 47.1, tokens: 212, cached: 1024, prompt: 1100 }
  expect(plain(statusLine(figures, WORDS))).toBe('⏱ first token 182 ms · total 1.08 s · 47 tok/s · 212 tokens · 1 024 cached')
  expect(plain(statusLine({ ...figures, perSecond: 0, cached: 0, tokens: 1 }, WORDS))).toBe('⏱ first token 182 ms · total 1.08 s · 1 token')
})

test.each([[0, '0 ms'], [999.4, '999 ms'], [1000, '1.00 s'], [9999, '10.0 s'], [59_940, '59.9 s'], [99_960, '1 min 40 s'], [3_600_000, '60 min 0 s']])(
  '%d ms', (ms, text) => expect(plain(duration(ms))).toBe(text))

test.each([[7, '7'], [1024, '1 024'], [1234567, '1 234 567']])('%d grouped', (count, text) => expect(plain(grouped(count))).toBe(text))

test.each([[12, '12 B'], [1234, '1.2 kB'], [45_678, '46 kB'], [999_600, '1.0 MB'], [397_702_144, '398 MB'], [2.1e9, '2.1 GB']])(
  '%d bytes', (bytes, text) => expect(plain(fileSize(bytes))).toBe(text))
