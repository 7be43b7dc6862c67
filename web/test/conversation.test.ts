import { expect, test } from 'vitest'
import { titleOf } from '../src/talk/conversation'

test.each([
  ['\n  Hello there.  \nmore', 'Hello there.'],
  ['x'.repeat(60), 'x'.repeat(60)],
  ['x'.repeat(61), 'x'.repeat(59) + '…'],
  ['a'.repeat(55) + ' b. and more', 'a'.repeat(55) + ' b…'],
  ['😀'.repeat(61), '😀'.repeat(59) + '…'],
  ['', ''],
])('the title of %j', (text, title) => expect(titleOf(text)).toBe(title))
