import type { Token, Tokens } from 'marked'
import { Component, type ComponentChild, type VNode } from 'preact'
import { useMemo, useRef } from 'preact/hooks'
import { t } from '../i18n'
import { type Block, Blocks, blocksOf } from './blocks'
import { CodeBlock } from './code'
import { decodeEntities } from './entities'
import { safeAddress } from './links'
import { Formula } from './formula'
import type { MathToken } from './parser'

const GROUP = 16 // complete blocks that are compared as one when the text grows

/**
 * Markdown as elements. They are built from tokens, never from HTML text, so that whatever a model writes stays text:
 * there is no element, attribute or address here that this file does not make itself.
 */
export function Markdown({ text, isGrowing, withMath }: { text: string; isGrowing: boolean; withMath: boolean }) {
  const blocks = useRef<Blocks | null>(null)
  const drawn = useRef(new WeakMap<Block, VNode>()) // Preact passes over an element that it has seen
  const groups = useRef(new WeakMap<Block, VNode>())
  const shown = useRef<Block[]>([])
  useMemo(() => {
    if (isGrowing) blocks.current ??= new Blocks(withMath)
    shown.current = isGrowing ? blocks.current!.update(text) : blocksOf(text, withMath, blocks.current ? shown.current : [])
    if (!isGrowing) blocks.current = null
  }, [text, isGrowing, withMath])
  return (
    <div class="markdown">
      {grouped(shown.current).map((group) => {
        const last = group.at(-1)!
        const isComplete = group.length === GROUP && !last.isOpen
        const element = isComplete ? groups.current.get(last) : undefined
        if (element) return element
        const made = <Group key={group[0]!.start} blocks={group} drawn={drawn.current} />
        if (isComplete) groups.current.set(last, made)
        return made
      })}
    </div>
  )
}

function grouped(blocks: Block[]): Block[][] {
  return Array.from({ length: Math.ceil(blocks.length / GROUP) }, (_, at) => blocks.slice(at * GROUP, (at + 1) * GROUP))
}

function Group({ blocks, drawn }: { blocks: Block[]; drawn: WeakMap<Block, VNode> }) {
  return (
    <>
      {blocks.map((block) => {
        const element = drawn.get(block) ?? <BlockView key={block.start} token={block.token} isOpen={block.isOpen} />
        drawn.set(block, element)
        return element
      })}
    </>
  )
}

function BlockView({ token, isOpen }: { token: Token; isOpen: boolean }) {
  return <>{block(token, 0, isOpen)}</>
}

function blocks(tokens: Token[] | undefined, isOpen: boolean): ComponentChild[] {
  return (tokens ?? []).map((token, index) => block(token, index, isOpen && index === tokens!.length - 1))
}

function block(token: Token, key: number, isOpen: boolean): ComponentChild {
  switch (token.type) {
    case 'heading':
      return heading(token as Tokens.Heading, key)
    case 'paragraph':
      return <p key={key}>{inline(token.tokens)}</p>
    case 'text':
      return <span key={key}>{token.tokens ? inline(token.tokens) : decodeEntities(token.text)}</span>
    case 'code':
      return <CodeBlock key={key} text={token.text} language={(token.lang ?? '').split(/\s/, 1)[0]} isOpen={isOpen} />
    case 'blockquote':
      return <blockquote key={key}>{blocks(token.tokens, isOpen)}</blockquote>
    case 'list':
      return list(token as Tokens.List, key, isOpen)
    case 'table':
      return table(token as Tokens.Table, key, isOpen)
    case 'hr':
      return <hr key={key} />
    case 'math':
      return <Formula key={key} tex={(token as MathToken).text} display />
    case 'space':
    case 'def':
      return null
    default:
      return <p key={key} class="raw">{token.raw}</p> // HTML among it
  }
}

function heading(token: Tokens.Heading, key: number): VNode {
  const Tag = `h${Math.min(6, token.depth + 2)}` as 'h3' // the page has the two above
  return <Tag key={key}>{inline(token.tokens)}</Tag>
}

/** An item of a list or a row of a table, which is passed over while its source stays the same and the block grows. */
class Part extends Component<{ source: string; isOpen: boolean; draw: () => VNode }> {
  override shouldComponentUpdate(next: Part['props']): boolean {
    return !next.isOpen || !this.props.isOpen || next.source !== this.props.source
  }

  override render(): VNode {
    return this.props.draw()
  }
}

function list(token: Tokens.List, key: number, isOpen: boolean): VNode {
  const items = token.items.map((item, index) => {
    const isLast = index === token.items.length - 1
    return <Part key={index} source={`${item.loose} ${isLast} ${item.raw}`} isOpen={isOpen} draw={() => listItem(item, isOpen && isLast)} />
  })
  if (!token.ordered) return <ul key={key}>{items}</ul>
  return <ol key={key} start={token.start === '' ? 1 : token.start}>{items}</ol>
}

function listItem(item: Tokens.ListItem, isOpen: boolean): VNode {
  return (
    <li class={item.task ? 'task' : undefined}>
      {item.task && <input type="checkbox" checked={item.checked === true} disabled aria-label={t('task')} />}
      {blocks(item.tokens.filter((part) => part.type !== 'checkbox'), isOpen)}
    </li>
  )
}

function table(token: Tokens.Table, key: number, isOpen: boolean): VNode {
  const side = (index: number) => (token.align[index] ? `to-${token.align[index]}` : undefined)
  const row = (cells: Tokens.TableCell[]) => <tr>{cells.map((cell, index) => <td key={index} class={side(index)}>{inline(cell.tokens)}</td>)}</tr>
  return (
    <div class="table" key={key} tabIndex={0} role="group" aria-label={t('table')}>
      <table>
        <thead>
          <tr>{token.header.map((cell, index) => <th key={index} scope="col" class={side(index)}>{inline(cell.tokens)}</th>)}</tr>
        </thead>
        <tbody>
          {token.rows.map((cells, at) => (
            <Part key={at} source={cells.map((cell) => cell.text).join('|')} isOpen={isOpen} draw={() => row(cells)} />
          ))}
        </tbody>
      </table>
    </div>
  )
}

function inline(tokens: Token[] | undefined): ComponentChild[] {
  return (tokens ?? []).map(piece)
}

function piece(token: Token, key: number): ComponentChild {
  switch (token.type) {
    case 'text':
    case 'escape':
      return token.type === 'text' && token.tokens ? inline(token.tokens) : decodeEntities(token.text)
    case 'strong':
      return <strong key={key}>{inline(token.tokens)}</strong>
    case 'em':
      return <em key={key}>{inline(token.tokens)}</em>
    case 'del':
      return <del key={key}>{inline(token.tokens)}</del>
    case 'codespan':
      return <code key={key}>{token.text}</code>
    case 'br':
      return <br key={key} />
    case 'link':
      return link(token.href, inline(token.tokens), token.raw, key)
    case 'image': // not loaded: the address of an image can carry what was said here to anywhere
      return link(token.href, [token.text || token.href], token.raw, key)
    case 'math':
      return <Formula key={key} tex={(token as MathToken).text} display={false} />
    default:
      return /^<br\s*\/?>$/i.test(token.raw) ? <br key={key} /> : token.raw
  }
}

function link(address: string, children: ComponentChild[], raw: string, key: number): ComponentChild {
  const href = safeAddress(address)
  if (href === null) return raw
  return <a key={key} href={href} target="_blank" rel="noopener noreferrer nofollow">{children}</a>
}
