// @vitest-environment happy-dom
import { render } from 'preact'
import { act } from 'preact/test-utils'
import { beforeEach, expect, test } from 'vitest'
import { blocksOf, Blocks } from '../src/text/blocks'
import { Markdown } from '../src/text/markdown'

let page: HTMLElement

beforeEach(() => {
  page?.remove()
  page = document.createElement('div')
  document.body.append(page)
})

async function draw(text: string, isGrowing = false, withMath = false): Promise<HTMLElement> {
  await act(() => render(<Markdown text={text} isGrowing={isGrowing} withMath={withMath} />, page))
  return page
}

const ATTACKS = [
  '<img src=x onerror=alert(1)>',
  '<svg/onload=alert(1)>',
  '<script>alert(1)</script>',
  '[x](javascript:alert(1))',
  '[x](JaVaScRiPt:alert(1))',
  '[x](java\tscript:alert(1))',
  '[x](&#106;avascript:alert(1))',
  '[x](data:text/html,<script>alert(1)</script>)',
  '[x](vbscript:msgbox)',
  '[x](//evil.example)',
  '<javascript:alert(1)>',
  '![x](https://evil.example/?q=1)',
  '![x](javascript:alert(1))',
  '![x][r]\n\n[r]: https://evil.example/?q=1 "onerror=alert(1)"',
  '```\n<form action=//evil><input></form>\n```',
  '<iframe srcdoc="<script>alert(1)</script>"></iframe>',
  '```"><img src=x onerror=alert(1)>\ncode\n```',
  '<a href="javascript:alert(1)">x</a>',
  '<style>*{display:none}</style>',
  '| <img src=x onerror=alert(1)> |\n|---|\n| <b onclick=alert(1)>x</b> |',
  '- <object data=x>\n- [ ] <embed src=x>',
  '# <base href=//evil>',
  '**<meta http-equiv=refresh content=0>**',
  '`<img src=x onerror=alert(1)>`',
  'a <br onclick=alert(1)> b',
  'https://ok.example/"onmouseover="alert(1)',
]

const ELEMENTS = new Set(
  `DIV P SPAN FIGURE FIGCAPTION PRE CODE BUTTON SVG PATH UL OL LI INPUT TABLE THEAD TBODY TR TH TD BLOCKQUOTE HR BR A
  STRONG EM DEL H3 H4 H5 H6`.split(/\s+/),
)

function expectHarmless(root: HTMLElement): void {
  for (const element of root.querySelectorAll('*')) {
    expect(ELEMENTS.has(element.tagName.toUpperCase()), element.tagName).toBe(true)
    for (const { name, value } of element.attributes) {
      expect(name.startsWith('on'), name).toBe(false)
      expect(['src', 'srcdoc', 'style', 'action', 'formaction'], name).not.toContain(name)
      if (name === 'href') expect(value).toMatch(/^(https?|mailto):/)
    }
  }
  for (const link of root.querySelectorAll('a')) expect(link.rel).toContain('noopener')
}

test.each(ATTACKS)('%j stays text', async (attack) => {
  expectHarmless(await draw(attack))
  expectHarmless(await draw(`text ${attack} text`))
  expectHarmless(await draw(attack, false, true))
})

test.each(ATTACKS)('%j stays text while it is written', async (attack) => {
  for (let end = 1; end <= attack.length; end++) expectHarmless(await draw(attack.slice(0, end), true))
})

test('HTML is shown as it was written', async () => {
  expect((await draw('<img src=x onerror=alert(1)>')).textContent).toContain('<img src=x onerror=alert(1)>')
  expect((await draw('a <b>c</b> d')).textContent).toBe('a <b>c</b> d')
})

test('character references stand for their characters, in code for themselves', async () => {
  expect((await draw('1 &lt; 2 &amp; 3 &#x1F600; &unknown;')).textContent).toBe('1 < 2 & 3 😀 &unknown;')
  expect((await draw('`&lt;`')).textContent).toBe('&lt;')
})

test('the common forms become elements', async () => {
  const drawn = await draw('# T\n\na **b** _c_ ~~d~~ `e` [f](https://x.example)\n\n1. g\n2. h\n\n| i | j |\n|--|--:|\n| k | l |\n\n> m\n\n---\n\n- [x] n')
  for (const tag of ['h3', 'strong', 'em', 'del', 'code', 'a', 'ol', 'table', 'blockquote', 'hr', 'input']) {
    expect(drawn.querySelector(tag), tag).not.toBeNull()
  }
  expect(drawn.querySelector('td:last-child')!.className).toBe('to-right')
  expect(drawn.querySelectorAll('li')).toHaveLength(3)
})

test('code keeps its text and shows its language', async () => {
  const drawn = await draw('```Python title=x\nif a < b:\n\tprint("&lt;")\n```')
  expect(drawn.querySelector('code')!.textContent).toBe('if a < b:\n\tprint("&lt;")')
  expect(drawn.querySelector('figcaption')!.textContent).toBe('Python')
})

test('an image is a link, so that nothing is loaded', async () => {
  const drawn = await draw('![a cat](https://x.example/cat.png)')
  expect(drawn.querySelector('img')).toBeNull()
  expect(drawn.querySelector('a')!.href).toBe('https://x.example/cat.png')
})

test('dollars are dollars unless math is on', async () => {
  expect((await draw('$x^2$')).querySelector('.formula')).toBeNull()
  expect((await draw('$x^2$', false, true)).querySelector('.formula')).not.toBeNull()
  expect((await draw('from $5 to $10', false, true)).querySelector('.formula')).toBeNull()
})

const LONG = '# Title\n\nOne **two**.\n\n- a\n- b\n\n  still b\n\n1. c\n\n```js\nlet x = 1\n\n\nlet y\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd\n===\n\n> q\n> r\n\n$$\nx\n$$\n\ntail'

test('a text drawn piece by piece ends as the same blocks', () => {
  for (const step of [1, 2, 3, 7, 50]) {
    const blocks = new Blocks(true)
    let drawn = blocks.update('')
    for (let end = step; end < LONG.length + step; end += step) drawn = blocks.update(LONG.slice(0, end))
    expect(drawn.map(({ start, token }) => [start, token])).toEqual(blocksOf(LONG, true).map(({ start, token }) => [start, token]))
  }
})

test('blocks that are complete are not read again', () => {
  const blocks = new Blocks(false)
  const before = blocks.update('one\n\ntwo\n\nthr')
  const after = blocks.update('one\n\ntwo\n\nthree')
  expect(after[0]).toBe(before[0])
  expect(after[1]).toBe(before[1])
  expect(after[2]!.token.raw).toBe('three')
})

test('blocks stay as they were drawn when the text is complete, unless an address is defined in it', () => {
  const growing = (text: string) => new Blocks(false).update(text)
  const text = '# one\n\ntwo\n\n- three\n\nfour'
  const [known, after] = [growing(text), blocksOf(text, false, growing(text))]
  expect(blocksOf(text, false, known).slice(0, 3).every((block, at) => block === known[at])).toBe(true)
  expect(blocksOf(text, false, known)[3]).not.toBe(known[3])
  expect(after.map(({ token }) => token.raw)).toEqual(known.map(({ token }) => token.raw))
  const linked = '[a][x]\n\ntwo\n\n[x]: https://example.org'
  const before = growing(linked)
  expect(blocksOf(linked, false, before)[0]).not.toBe(before[0])
})
