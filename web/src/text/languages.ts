import DOMPurify from 'dompurify'
import hljs from 'highlight.js/lib/core'
import bash from 'highlight.js/lib/languages/bash'
import c from 'highlight.js/lib/languages/c'
import cpp from 'highlight.js/lib/languages/cpp'
import csharp from 'highlight.js/lib/languages/csharp'
import css from 'highlight.js/lib/languages/css'
import diff from 'highlight.js/lib/languages/diff'
import go from 'highlight.js/lib/languages/go'
import ini from 'highlight.js/lib/languages/ini'
import java from 'highlight.js/lib/languages/java'
import javascript from 'highlight.js/lib/languages/javascript'
import json from 'highlight.js/lib/languages/json'
import kotlin from 'highlight.js/lib/languages/kotlin'
import lua from 'highlight.js/lib/languages/lua'
import makefile from 'highlight.js/lib/languages/makefile'
import markdown from 'highlight.js/lib/languages/markdown'
import php from 'highlight.js/lib/languages/php'
import python from 'highlight.js/lib/languages/python'
import r from 'highlight.js/lib/languages/r'
import ruby from 'highlight.js/lib/languages/ruby'
import rust from 'highlight.js/lib/languages/rust'
import shell from 'highlight.js/lib/languages/shell'
import sql from 'highlight.js/lib/languages/sql'
import swift from 'highlight.js/lib/languages/swift'
import typescript from 'highlight.js/lib/languages/typescript'
import xml from 'highlight.js/lib/languages/xml'
import yaml from 'highlight.js/lib/languages/yaml'

const LANGUAGES = {
  bash, c, cpp, csharp, css, diff, go, ini, java, javascript, json, kotlin, lua, makefile, markdown, php, python, r,
  ruby, rust, shell, sql, swift, typescript, xml, yaml,
}
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language)

/** Code as HTML with its parts in spans, in pieces of so many lines; null for a language that is not known here. */
export function colored(code: string, language: string, lines: number): string[] | null {
  if (!hljs.getLanguage(language)) return null
  return inPieces(hljs.highlight(code, { language, ignoreIllegals: true }).value, lines)
}

/** The elements of such a piece, with nothing in them but spans and their classes. */
export function elements(html: string): DocumentFragment {
  return DOMPurify.sanitize(html, { ALLOWED_TAGS: ['span'], ALLOWED_ATTR: ['class'], RETURN_DOM_FRAGMENT: true })
}

/** HTML of spans, cut after every `lines` lines; spans that go on beyond a cut are closed before and opened again. */
function inPieces(html: string, lines: number): string[] {
  const pieces: string[] = []
  const open: string[] = []
  let piece = ''
  let left = lines
  for (const [part] of html.matchAll(/<[^>]*>|\n|[^<\n]+/g)) {
    piece += part
    if (part === '</span>') open.pop()
    else if (part.startsWith('<')) open.push(part)
    if (part !== '\n' || --left > 0) continue
    pieces.push(piece + '</span>'.repeat(open.length))
    piece = open.join('')
    left = lines
  }
  return [...pieces, piece + '</span>'.repeat(open.length)]
}
