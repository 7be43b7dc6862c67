"""The HTTP server: OpenAI's, llama-server's and typebar's own routes over one engine.

The way of a streamed chat: app (routes) → guard (who may) → body (bytes to fields) → chat (fields to prompt and
parameters) → jobs (a request while it runs) → engine (the engine in its thread) → sse (outputs to events).
"""

from typebar.server.deferred import defer

# Their own __init__ bring a command line, HTTP servers and multiprocessing: 3 MB, and 60 ms of a start.
defer("uvicorn", Config="uvicorn.config", Server="uvicorn.server")
defer("prometheus_client")
