"""GET /v1/status: the state of the server in one small object, for people and the chat page."""

from __future__ import annotations

import msgspec

from typebar import __version__
from typebar.engine.blocks import BLOCK_TOKENS
from typebar.server.exchange import Exchange


class Status(msgspec.Struct, kw_only=True):
    """`seats`: sequences that can run together. `kv_tokens`: what the KV cache holds, in `kv_dtype`; `kv_used`: the
    part of it that running sequences hold, `kv_filled`: in use or kept for reuse, both 0 to 1."""

    model: str
    version: str
    architecture: str
    parameters: int
    weights_bytes: int
    max_model_len: int
    threads: int
    seats: int
    running: int
    waiting: int
    kv_dtype: str
    kv_tokens: int
    kv_used: float
    kv_filled: float


async def status(exchange: Exchange) -> None:
    """The model, what runs and waits, and how full the KV cache is."""
    serving = exchange.ready()
    info, stats = serving.engine.info, serving.engine.stats()
    blocks = stats.kv_blocks
    await exchange.json(
        Status(
            model=serving.name,
            version=__version__,
            architecture=info.architecture,
            parameters=info.parameters,
            weights_bytes=info.size,
            max_model_len=info.max_model_len,
            threads=info.threads,
            seats=info.max_num_seqs,
            running=stats.running,
            waiting=stats.waiting,
            kv_dtype=info.kv_dtype,
            kv_tokens=blocks * BLOCK_TOKENS,
            kv_used=round(1 - stats.available_blocks / blocks, 4) if blocks else 0.0,
            kv_filled=round(1 - stats.free_blocks / blocks, 4) if blocks else 0.0,
        )
    )
