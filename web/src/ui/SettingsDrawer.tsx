import { useState } from 'preact/hooks'
import { storedKey, storeKey } from '../api/key'
import { tell } from '../store/tabs'
import { t } from '../i18n'
import { changeSettings, settings } from '../state/conversations'
import { keep, store } from '../state/keeping'
import { type Preferences, preferences } from '../state/preferences'
import { MAX_TURNS, type PresetName, PRESETS } from '../talk/settings'
import { Dialog } from './Dialog'
import { NumberField, Slider, Switch } from './fields'

const PRESET_NAMES = [...Object.keys(PRESETS), 'own'] as PresetName[]

/** How answers are made, and how the page looks. */
export function SettingsDrawer({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title={t('settings.title')} onClose={onClose} class="drawer">
      <p class="hint">{t('settings.scope')}</p>
      <Answers />
      <Context />
      <Page />
    </Dialog>
  )
}

function Answers() {
  const { system, preset, temperature, topP, maxTokens, seed, json } = settings.value
  return (
    <section>
      <label class="setting">
        <span>{t('settings.system')}</span>
        <textarea
          class="field"
          rows={4}
          value={system}
          placeholder={t('settings.systemHint')}
          onInput={(event) => void changeSettings({ system: event.currentTarget.value })}
        />
      </label>
      <label class="setting">
        <span>{t('settings.preset')}</span>
        <select class="field" value={preset} onChange={(event) => void changeSettings({ preset: event.currentTarget.value as PresetName })}>
          {PRESET_NAMES.map((name) => <option key={name} value={name}>{t(`preset.${name}`)}</option>)}
        </select>
      </label>
      <Slider label={t('settings.temperature')} value={temperature} most={2} usual={0.7} onChange={(value) => void changeSettings({ temperature: value })} />
      <Slider label={t('settings.topP')} value={topP} most={1} usual={0.8} onChange={(value) => void changeSettings({ topP: value })} />
      <NumberField label={t('settings.maxTokens')} value={maxTokens} least={1} none={t('settings.none')} onChange={(value) => void changeSettings({ maxTokens: value })} />
      <NumberField label={t('settings.seed')} value={seed} least={0} none={t('settings.random')} onChange={(value) => void changeSettings({ seed: value })} />
      <Switch label={t('settings.json')} hint={t('settings.jsonHint')} isOn={json} onChange={(isOn) => void changeSettings({ json: isOn })} />
    </section>
  )
}

function Context() {
  const { turns, keepAll } = settings.value
  return (
    <section>
      <h3>{t('settings.context')}</h3>
      <label class="setting">
        <span>{t('settings.turns')} <output>{turns}</output></span>
        <input
          type="range" min={1} max={MAX_TURNS} value={turns} disabled={keepAll}
          onInput={(event) => void changeSettings({ turns: event.currentTarget.valueAsNumber })}
        />
      </label>
      <Switch label={t('settings.keepAll')} hint={t('settings.keepAllHint')} isOn={keepAll} onChange={(isOn) => void changeSettings({ keepAll: isOn })} />
    </section>
  )
}

function change(change: Partial<Preferences>): void {
  preferences.value = { ...preferences.value, ...change }
  void keep(store.setSetting('preferences', preferences.value)).then(() => tell({ what: 'preferences' }))
}

function Page() {
  const { language, theme, math } = preferences.value
  const [hasKey, setHasKey] = useState(storedKey() !== '')
  return (
    <section>
      <h3>{t('settings.page')}</h3>
      <label class="setting">
        <span>{t('settings.language')}</span>
        <select class="field" value={language} onChange={(event) => change({ language: event.currentTarget.value as Preferences['language'] })}>
          <option value="auto">{t('settings.auto')}</option>
          <option value="en" lang="en">English</option>
          <option value="zh" lang="zh-Hans">中文</option>
        </select>
      </label>
      <label class="setting">
        <span>{t('settings.theme')}</span>
        <select class="field" value={theme} onChange={(event) => change({ theme: event.currentTarget.value as Preferences['theme'] })}>
          <option value="auto">{t('settings.auto')}</option>
          <option value="light">{t('theme.light')}</option>
          <option value="dark">{t('theme.dark')}</option>
        </select>
      </label>
      <Switch label={t('settings.math')} isOn={math} onChange={(isOn) => change({ math: isOn })} />
      {hasKey && (
        <div class="setting">
          <span>{t('settings.key')}</span>
          <button
            type="button"
            class="button small"
            onClick={() => {
              storeKey('')
              setHasKey(false)
            }}
          >
            {t('settings.keyForget')}
          </button>
        </div>
      )}
    </section>
  )
}
