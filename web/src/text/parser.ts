import { Marked, type TokenizerAndRendererExtension, type TokensList } from 'marked'

/** TeX between signs, on lines of its own or in a line; only read where math is switched on. */
export interface MathToken {
  type: 'math'
  raw: string
  text: string
  display: boolean
}

const DISPLAY = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/
const INLINE = /^(?:\\\(([\s\S]+?)\\\)|\$\$([^$\n]+?)\$\$|\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d))/

const extensions: TokenizerAndRendererExtension[] = [
  {
    name: 'math',
    level: 'block',
    start: (source) => source.match(/\$\$|\\\[/)?.index,
    tokenizer: (source) => math(DISPLAY.exec(source), true),
  },
  {
    name: 'math',
    level: 'inline',
    start: (source) => source.match(/\$|\\\(/)?.index,
    tokenizer: (source) => math(INLINE.exec(source), false),
  },
]

function math(match: RegExpExecArray | null, display: boolean): MathToken | undefined {
  return match ? { type: 'math', raw: match[0], text: (match[1] ?? match[2] ?? match[3] ?? '').trim(), display } : undefined
}

const plain = new Marked({ gfm: true })
const mathematical = new Marked({ gfm: true }, { extensions })

/** Markdown as tokens; nothing of it is ever turned into HTML text. */
export function parse(text: string, withMath: boolean): TokensList {
  return (withMath ? mathematical : plain).lexer(text.replace(/\r\n?/g, '\n'))
}
