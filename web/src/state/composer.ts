import { signal } from '@preact/signals'
import { type Refusal, MAX_FILE, readFile } from '../talk/files'
import { fileSize } from '../talk/figures'
import type { Message, TextFile } from '../talk/message'
import { t } from '../i18n'
import { resend, send } from './answers'
import { openId, path } from './conversations'
import { say } from './notices'

/** What is being written, and which earlier message it is to replace. */
export const draft = signal('')
export const files = signal<TextFile[]>([])
export const editing = signal<Message | null>(null)

const slot = () => `typebar-draft-${openId.value ?? 'new'}`

export function write(text: string): void {
  draft.value = text
  if (editing.value) return
  try {
    if (text) sessionStorage.setItem(slot(), text)
    else sessionStorage.removeItem(slot())
  } catch {
    // a draft that outlives a reload is a comfort only
  }
}

/** Take up the draft of the conversation that is now shown. */
export function restoreDraft(): void {
  editing.value = null
  files.value = []
  try {
    draft.value = sessionStorage.getItem(slot()) ?? ''
  } catch {
    draft.value = ''
  }
}

export async function attach(list: Iterable<File>): Promise<void> {
  for (const file of list) {
    const result = await readFile(file)
    if ('reason' in result) say(refusal(result))
    else files.value = [...files.value.filter((one) => one.name !== result.name), result]
  }
}

export function detach(name: string): void {
  files.value = files.value.filter((file) => file.name !== name)
}

export async function submit(): Promise<void> {
  const text = draft.value
  const attached = files.value
  if (text.trim() === '' && attached.length === 0) return
  const replaced = editing.value
  editing.value = null
  files.value = []
  write('')
  await (replaced ? resend(replaced, text, attached) : send(text, attached))
}

export function edit(message: Message): void {
  editing.value = message
  draft.value = message.text
  files.value = message.files ?? []
}

/** Edit the last message of the person; false where there is none. */
export function editLast(): boolean {
  const last = path.value.findLast((message) => message.role === 'user')
  if (last) edit(last)
  return last !== undefined
}

function refusal({ name, reason, size }: Refusal): string {
  return t(reason === 'large' ? 'file.large' : 'file.binary', { name, size: fileSize(size), most: fileSize(MAX_FILE) })
}
