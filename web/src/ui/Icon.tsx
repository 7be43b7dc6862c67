const PATHS = {
  menu: 'M4 7h16M4 12h16M4 17h16',
  plus: 'M12 5v14M5 12h14',
  close: 'M6 6l12 12M18 6L6 18',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M8 8h8v8H8z',
  attach: 'M20 11.5l-8.2 8.2a5 5 0 01-7-7l8.5-8.6a3.4 3.4 0 014.8 4.8L9.6 17.4a1.7 1.7 0 01-2.4-2.4l7.8-7.9',
  copy: 'M9 9h10v11H9zM5 15V4h10',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  again: 'M19 8a8 8 0 10.6 6M19.5 3.5V8.5H14.5',
  edit: 'M4 20l1-4.5L16.5 4 20 7.5 8.5 19zM14.5 6l3.5 3.5',
  branch: 'M7 5v14M7 12c6 0 10-1 10-6M17 6V5M4.8 5h4.4M4.8 19h4.4M14.8 5h4.4',
  left: 'M14.5 6L8.5 12l6 6',
  right: 'M9.5 6l6 6-6 6',
  down: 'M12 5v14M6 13l6 6 6-6',
  more: 'M5.5 12h.01M12 12h.01M18.5 12h.01',
  settings: 'M4 7h9M17 7h3M4 17h3M11 17h9M13 4.8v4.4M7 14.8v4.4',
  search: 'M11 18a7 7 0 100-14 7 7 0 000 14zM16.2 16.2L20.5 20.5',
} as const

export type IconName = keyof typeof PATHS

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  )
}
