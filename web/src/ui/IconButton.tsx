import { Icon, type IconName } from './Icon'

interface Props {
  icon: IconName
  label: string
  onClick: () => void
  class?: string
  disabled?: boolean
}

/** A button that shows an icon; its label is read, and shown on hovering. */
export function IconButton({ icon, label, onClick, class: more = '', disabled = false }: Props) {
  return (
    <button type="button" class={`icon-button ${more}`} aria-label={label} title={label} onClick={onClick} disabled={disabled}>
      <Icon name={icon} />
    </button>
  )
}
