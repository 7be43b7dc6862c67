"""What a server says of itself on /metrics, under vLLM's names or llama-server's."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from typebar.bench.client import Client

RUNNING = ("vllm:num_requests_running", "llamacpp:requests_processing")
WAITING = ("vllm:num_requests_waiting", "llamacpp:requests_deferred")
KV_USAGE = ("typebar:kv_cache_filled_perc", "vllm:kv_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class Gauges:
    """Requests that run and wait; the share of the KV cache that is not free, 0 to 1, 0 where it is not told."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0

    @property
    def requests(self) -> int:
        return self.running + self.waiting


async def read_gauges(client: Client) -> Gauges:
    """The gauges now. httpx.HTTPError where the page cannot be read."""
    families = text_string_to_metric_families(await client.text("/metrics"))
    values = {family.name: family.samples[0].value for family in families if family.samples}

    def first(names: tuple[str, ...]) -> float:
        return float(next((values[name] for name in names if name in values), 0))

    return Gauges(int(first(RUNNING)), int(first(WAITING)), first(KV_USAGE))
