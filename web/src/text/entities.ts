const NAMED: Record<string, string> = {
  amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', reg: '®', trade: '™', hellip: '…',
  mdash: '—', ndash: '–', lsquo: '‘', rsquo: '’', ldquo: '“', rdquo: '”', bull: '•', middot: '·', times: '×',
  divide: '÷', plusmn: '±', deg: '°', larr: '←', rarr: '→', uarr: '↑', darr: '↓', ne: '≠', le: '≤', ge: '≥',
  infin: '∞', euro: '€', pound: '£', yen: '¥', sect: '§', para: '¶', laquo: '«', raquo: '»',
}

/** The characters that HTML's character references in Markdown stand for; unknown ones stay as they are. */
export function decodeEntities(text: string): string {
  return text.replace(/&(?:#x([0-9a-f]{1,6})|#(\d{1,7})|([a-z]{2,8}));/gi, (whole, hex, decimal, name) => {
    if (name) return NAMED[name] ?? whole
    const code = parseInt(hex ?? decimal, hex ? 16 : 10)
    return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : '\ufffd'
  })
}
