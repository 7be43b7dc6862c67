import { useId } from 'preact/hooks'
import { t } from '../i18n'

interface SliderProps {
  label: string
  value: number | null
  most: number
  usual: number // where the slider stands while the server's value counts
  onChange: (value: number | null) => void
}

/** A number that may also be left to the server. */
export function Slider({ label, value, most, usual, onChange }: SliderProps) {
  const id = useId()
  return (
    <div class="setting">
      <span class="row">
        <label for={id}>{label} <output>{value ?? t('settings.server')}</output></label>
        {value !== null && (
          <button type="button" class="link" onClick={() => onChange(null)} aria-label={`${label}: ${t('settings.server')}`}>↺</button>
        )}
      </span>
      <input
        id={id} type="range" min={most === 1 ? 0.05 : 0} max={most} step={0.05} value={value ?? usual}
        class={value === null ? 'unset' : ''}
        onInput={(event) => onChange(Math.round(event.currentTarget.valueAsNumber * 100) / 100)}
      />
    </div>
  )
}

interface NumberProps {
  label: string
  value: number | null
  least: number
  none: string // what an empty field means
  onChange: (value: number | null) => void
}

export function NumberField({ label, value, least, none, onChange }: NumberProps) {
  const read = (text: string) => {
    const number = Math.round(Number(text))
    onChange(text.trim() === '' || !Number.isFinite(number) || number < least ? null : number)
  }
  return (
    <label class="setting inline">
      <span>{label}</span>
      <input
        class="field" type="number" inputMode="numeric" min={least} value={value ?? ''} placeholder={none}
        onChange={(event) => read(event.currentTarget.value)}
      />
    </label>
  )
}

interface SwitchProps {
  label: string
  isOn: boolean
  hint?: string
  onChange: (isOn: boolean) => void
}

export function Switch({ label, isOn, hint, onChange }: SwitchProps) {
  const id = useId()
  return (
    <div class="setting">
      <label class="switch">
        <input
          type="checkbox" role="switch" checked={isOn} aria-describedby={hint ? id : undefined}
          onChange={(event) => onChange(event.currentTarget.checked)}
        />
        <span>{label}</span>
      </label>
      {hint && <small id={id}>{hint}</small>}
    </div>
  )
}
