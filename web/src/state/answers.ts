import { computed, signal } from '@preact/signals'
import { type Conversation } from '../talk/conversation'
import { newId } from '../talk/id'
import type { Message, TextFile } from '../talk/message'
import { pathTo } from '../talk/tree'
import { Answer } from './answer'
import {
  begin, changeConversation, changeSettings, conversations, dropMessage, messages, open, openId, putMessages,
} from './conversations'

/** Answers that are being written, by conversation. One conversation has one at most. */
export const answers = signal<ReadonlyMap<string, Answer>>(new Map())

export const current = computed(() => (openId.value === null ? null : (answers.value.get(openId.value) ?? null)))

/** Send a message at the end of the shown branch. An answer that is still written ends with what it has. */
export async function send(text: string, files: TextFile[]): Promise<void> {
  const conversation = open.value ?? (await begin(text || files[0]!.name))
  await interrupt(conversation.id)
  const leaf = await withoutEmptyAnswer(latest(conversation))
  await ask(latest(conversation), leaf, text, files)
}

/** Send a changed message in place of an earlier one; both stay, as branches. */
export async function resend(message: Message, text: string, files: TextFile[]): Promise<void> {
  const conversation = open.value!
  await interrupt(conversation.id)
  await ask(conversation, message.parent, text, files)
}

/** Write another answer beside this one. One without a text is written anew in its place. */
export async function regenerate(message: Message): Promise<void> {
  const conversation = open.value!
  await interrupt(conversation.id)
  const answer = emptyAnswer(conversation, message.parent, message.text === '' ? message.id : undefined)
  void putMessages(answer)
  await changeConversation(conversation.id, { leaf: answer.id, updated: Date.now() })
  start(latest(conversation), answer)
}

/** Go on with an answer that has no end. */
export async function continueAnswer(message: Message): Promise<void> {
  const conversation = open.value!
  await interrupt(conversation.id)
  const { problem: _, ...rest } = message
  const answer: Message = { ...rest, end: 'writing', touched: Date.now() }
  void putMessages(answer)
  start(conversation, answer)
}

/** Try a message that was too long again with as many turns as fit. */
export async function leaveOutOldTurns(message: Message): Promise<void> {
  await changeSettings({ keepAll: true })
  await (message.text === '' ? regenerate(message) : continueAnswer(message))
}

export function stop(): void {
  current.value?.stop()
}

/** End the answer of a conversation, and wait until its text is kept. */
export async function interrupt(conversation: string): Promise<void> {
  const answer = answers.value.get(conversation)
  answer?.stop()
  await answer?.over
}

async function ask(conversation: Conversation, parent: string | null, text: string, files: TextFile[]): Promise<void> {
  const question: Message = {
    id: newId(), conversation: conversation.id, parent, role: 'user', text, created: Date.now(),
    ...(files.length > 0 ? { files } : {}),
  }
  const answer = emptyAnswer(conversation, question.id)
  void putMessages(question, answer)
  void changeConversation(conversation.id, { leaf: answer.id, updated: Date.now() })
  start(latest(conversation), answer)
}

function start(conversation: Conversation, message: Message): void {
  const answer = new Answer(conversation, pathTo(messages.value, message.parent), message)
  answers.value = new Map(answers.value).set(conversation.id, answer)
  void answer.over.then(() => {
    if (answers.value.get(conversation.id) !== answer) return
    const rest = new Map(answers.value)
    rest.delete(conversation.id)
    answers.value = rest
  })
}

async function withoutEmptyAnswer(conversation: Conversation): Promise<string | null> {
  const leaf = messages.value.find((message) => message.id === conversation.leaf)
  if (leaf?.role !== 'assistant' || leaf.text !== '') return conversation.leaf
  await dropMessage(leaf)
  return leaf.parent
}

function emptyAnswer(conversation: Conversation, parent: string | null, id = newId()): Message {
  const now = Date.now()
  return {
    id, conversation: conversation.id, parent, role: 'assistant', text: '', created: now, end: 'writing', touched: now,
    ...(conversation.settings.json ? { isJSON: true } : {}),
  }
}

/** The conversation as it stands now. */
function latest(conversation: Conversation): Conversation {
  return conversations.value.find((one) => one.id === conversation.id) ?? conversation
}
