import type { Message, TextFile } from './message'

export const MAX_FILE = 1_000_000 // bytes; more would not fit any context that this page is used with

export type Refusal = { name: string; reason: 'binary' | 'large'; size: number }

/** A dropped file as text, or why it cannot be taken: nothing is ever cut. */
export async function readFile(file: File): Promise<TextFile | Refusal> {
  if (file.size > MAX_FILE) return { name: file.name, reason: 'large', size: file.size }
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer())
    if (text.includes('\0')) return { name: file.name, reason: 'binary', size: file.size }
    return { name: file.name, size: file.size, text }
  } catch {
    return { name: file.name, reason: 'binary', size: file.size }
  }
}

/** What the model reads of a message: its files in fences, then its text. The same message gives the same bytes. */
export function sentText(message: Pick<Message, 'text' | 'files'>): string {
  const parts = (message.files ?? []).map(fenced)
  return message.text === '' ? parts.join('\n') : [...parts, message.text].join('\n')
}

function fenced(file: TextFile): string {
  const runs = file.text.match(/`+/g) ?? []
  const fence = '`'.repeat(Math.max(3, ...runs.map((run) => run.length + 1)))
  const language = /\.([a-z0-9+#]{1,10})$/i.exec(file.name)?.[1]?.toLowerCase() ?? ''
  return `${file.name}:\n${fence}${language}\n${file.text}${file.text.endsWith('\n') ? '' : '\n'}${fence}\n`
}
