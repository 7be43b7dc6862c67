import { expect, test } from 'vitest'
import { EventParser } from '../src/api/sse'

const STREAM = ': typebar\n\ndata: {"a":"é😀"}\r\n\r\n: ping\n\ndata:no space\rdata: second line\r\revent: x\nid: 1\n\ndata\n\ndata: [DONE]\n\n'
const EVENTS = ['{"a":"é😀"}', 'no space\nsecond line', '', '[DONE]']

function read(...pieces: string[]): string[] {
  const parser = new EventParser()
  return pieces.flatMap((piece) => parser.push(piece))
}

test('events are the same wherever the stream is split', () => {
  expect(read(STREAM)).toEqual(EVENTS)
  for (let at = 0; at <= STREAM.length; at++) {
    expect(read(STREAM.slice(0, at), STREAM.slice(at)), `split at ${at}`).toEqual(EVENTS)
  }
  expect(read(...STREAM)).toEqual(EVENTS)
})

test('an event without its blank line has not come', () => {
  expect(read('data: 1\n\ndata: 2\n')).toEqual(['1'])
})

test('bytes split inside a character arrive whole', () => {
  const bytes = new TextEncoder().encode(STREAM)
  for (let at = 0; at <= bytes.length; at++) {
    const decoder = new TextDecoder()
    const pieces = [bytes.slice(0, at), bytes.slice(at)].map((piece) => decoder.decode(piece, { stream: true }))
    expect(read(...pieces), `split at ${at}`).toEqual(EVENTS)
  }
})
