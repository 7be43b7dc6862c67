import { errorOf, ServerGone } from './errors'
import { storedKey } from './key'

/** A request to the server that the page came from, with the key where there is one. ApiError, ServerGone. */
export async function request(path: string, options: { body?: unknown; signal?: AbortSignal } = {}): Promise<Response> {
  const headers: Record<string, string> = {}
  const key = storedKey()
  if (key) headers.authorization = `Bearer ${key}`
  const init: RequestInit = { headers, cache: 'no-store', credentials: 'omit' }
  if (options.signal) init.signal = options.signal
  if (options.body !== undefined) {
    headers['content-type'] = 'application/json'
    init.method = 'POST'
    init.body = JSON.stringify(options.body)
  }
  let response: Response
  try {
    response = await fetch(path, init)
  } catch (error) {
    if (options.signal?.aborted) throw error
    throw new ServerGone(String(error))
  }
  if (!response.ok) throw await errorOf(response)
  return response
}
