import 'fake-indexeddb/auto'
import { beforeEach, describe, expect, test } from 'vitest'
import { Database } from '../src/store/database'
import { Memory } from '../src/store/memory'
import type { Store } from '../src/store/store'
import type { Conversation } from '../src/talk/conversation'
import { type Message, settled } from '../src/talk/message'
import { DEFAULTS } from '../src/talk/settings'
import { newestLeaf, pathTo, siblings } from '../src/talk/tree'

let number = 0
const conversation = (id: string): Conversation => ({ id, title: id, created: 1, updated: 1, leaf: null, settings: DEFAULTS })
const message = (id: string, of: string, text = id): Message => ({ id, conversation: of, parent: null, role: 'user', text, created: 1 })

describe.each([
  ['IndexedDB', () => Database.open(`test-${number++}`)],
  ['memory', async () => new Memory()],
])('%s', (_, open) => {
  let store: Store
  beforeEach(async () => {
    store = await open()
    await store.add({ conversation: conversation('a'), messages: [message('1', 'a', 'Hello World'), message('2', 'a')] })
    await store.add({ conversation: conversation('b'), messages: [message('3', 'b')] })
  })

  test('what is stored is there, each under its conversation', async () => {
    expect((await store.conversations()).map(({ id }) => id).sort()).toEqual(['a', 'b'])
    expect((await store.messages('a')).map(({ id }) => id)).toEqual(['1', '2'])
    expect(await store.messages('none')).toEqual([])
  })

  test('two tabs change different fields and keep both', async () => {
    await Promise.all([store.change('a', { title: 'renamed' }), store.change('a', { leaf: '2' })])
    expect((await store.conversations()).find(({ id }) => id === 'a')).toMatchObject({ title: 'renamed', leaf: '2' })
  })

  test('nothing is added to a conversation that was deleted', async () => {
    await store.remove('a')
    expect(await store.put('a', message('4', 'a'))).toBe(false)
    expect(await store.change('a', { title: 'back' })).toBe(false)
    expect(await store.messages('a')).toEqual([])
    expect((await store.messages('b')).length).toBe(1)
  })

  test('messages are replaced and removed one by one', async () => {
    expect(await store.put('a', message('2', 'a', 'new'), message('5', 'a'))).toBe(true)
    await store.removeMessage('1')
    expect((await store.messages('a')).map(({ text }) => text)).toEqual(['new', '5'])
  })

  test('search finds texts whatever the case', async () => {
    expect(await store.search('WORLD')).toEqual(new Set(['a']))
    expect(await store.search('nowhere')).toEqual(new Set())
  })

  test('everything is forgotten', async () => {
    await store.setSetting('x', 1)
    expect(await store.setting('x')).toBe(1)
    await store.forgetEverything()
    expect([await store.conversations(), await store.messages('a'), await store.setting('x')]).toEqual([[], [], undefined])
  })
})

test('branches: the way to a leaf, versions, the newest end', () => {
  const tree = [
    message('1', 'a'), { ...message('2', 'a'), parent: '1' }, { ...message('3', 'a'), parent: '1' },
    { ...message('4', 'a'), parent: '2' }, { ...message('5', 'a'), parent: '4' },
  ]
  expect(pathTo(tree, '4').map(({ id }) => id)).toEqual(['1', '2', '4'])
  expect(pathTo(tree, null)).toEqual([])
  expect(siblings(tree, tree[1]!).map(({ id }) => id)).toEqual(['2', '3'])
  expect(newestLeaf(tree, '2')).toBe('5')
  expect(newestLeaf(tree, '1')).toBe('3')
})

test('a circle of parents ends', () => {
  const circle = [{ ...message('1', 'a'), parent: '2' }, { ...message('2', 'a'), parent: '1' }]
  expect(pathTo(circle, '1')).toHaveLength(2)
  expect(['1', '2']).toContain(newestLeaf(circle, '1'))
})

test('an answer whose tab is gone is cut', () => {
  const writing: Message = { ...message('1', 'a'), role: 'assistant', end: 'writing', touched: 100_000 }
  expect(settled(writing, 105_000).end).toBe('writing')
  expect(settled(writing, 115_000).end).toBe('cut')
})
