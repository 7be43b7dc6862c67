/** What an answer is drawn with. null: as the server is set. */
export interface Settings {
  system: string
  preset: PresetName
  temperature: number | null
  topP: number | null
  topK: number | null
  repetitionPenalty: number | null
  maxTokens: number | null
  seed: number | null
  json: boolean // answers are one JSON object each
  turns: number
  keepAll: boolean
}

export type PresetName = 'server' | 'chat' | 'qa' | 'code' | 'precise' | 'own'
type Sampling = Pick<Settings, 'temperature' | 'topP' | 'topK' | 'repetitionPenalty'>

export const MAX_TURNS = 50

export const PRESETS: Record<Exclude<PresetName, 'own'>, Sampling> = {
  server: { temperature: null, topP: null, topK: null, repetitionPenalty: null },
  chat: { temperature: 0.7, topP: 0.8, topK: 20, repetitionPenalty: 1.05 },
  qa: { temperature: 0, topP: null, topK: null, repetitionPenalty: 1 },
  code: { temperature: 0.3, topP: 0.95, topK: 10, repetitionPenalty: 1 },
  precise: { temperature: 0.1, topP: 0.5, topK: 5, repetitionPenalty: 1 },
}

export const DEFAULTS: Settings = {
  system: '',
  preset: 'server',
  ...PRESETS.server,
  maxTokens: null,
  seed: null,
  json: false,
  turns: 5,
  keepAll: false,
}

/** The settings with a change; one of the sampling makes the preset the person's own. */
export function changed(settings: Settings, change: Partial<Settings>): Settings {
  if (change.preset && change.preset !== 'own') return { ...settings, ...PRESETS[change.preset], ...change }
  const isSampling = ['temperature', 'topP', 'topK', 'repetitionPenalty'].some((name) => name in change)
  return { ...settings, ...(isSampling ? { preset: 'own' as const } : {}), ...change }
}

/** Settings out of anything, such as an imported file: what is not right takes the default. */
export function readSettings(value: unknown): Settings {
  const found = typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
  const number = (name: keyof Settings, low: number, high: number) => {
    const given = found[name]
    return typeof given === 'number' && given >= low && given <= high ? given : null
  }
  const preset = typeof found.preset === 'string' && (found.preset in PRESETS || found.preset === 'own')
  return {
    system: typeof found.system === 'string' ? found.system : '',
    preset: preset ? (found.preset as PresetName) : 'server',
    temperature: number('temperature', 0, 2),
    topP: number('topP', 0.01, 1),
    topK: number('topK', 0, 1000),
    repetitionPenalty: number('repetitionPenalty', 0.1, 2),
    maxTokens: number('maxTokens', 1, 1e6),
    seed: number('seed', 0, 2 ** 32),
    json: found.json === true,
    turns: Math.round(number('turns', 1, MAX_TURNS) ?? DEFAULTS.turns),
    keepAll: found.keepAll === true,
  }
}
