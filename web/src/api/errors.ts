/** The server refused or failed. `details` holds what else its error object says, such as n_ctx. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly retryAfter: number | null = null, // seconds
    readonly details: Record<string, unknown> = {},
  ) {
    super(message)
  }
}

/** Nobody answers: the server is gone, or the network. */
export class ServerGone extends Error {}

/** The connection ended before the answer did. */
export class StreamCut extends Error {}

/** The error that a response tells of; its body may be anything. */
export async function errorOf(response: Response): Promise<ApiError> {
  const body: unknown = await response.json().catch(() => null)
  const seconds = Number(response.headers.get('retry-after') ?? NaN)
  return errorFrom(response.status, body, Number.isFinite(seconds) ? seconds : null)
}

export function errorFrom(status: number, body: unknown, retryAfter: number | null = null): ApiError {
  const error = isObject(body) && isObject(body.error) ? body.error : {}
  const message = typeof error.message === 'string' ? error.message : `HTTP ${status}`
  const code = typeof error.code === 'string' ? error.code : ''
  return new ApiError(status, code, message, retryAfter, error)
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}
