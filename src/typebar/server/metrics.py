"""What /metrics says, under the names that dashboards made for vLLM and llama-server already read.

Durations and sizes come from requests that have ended, the state of the engine from its `Stats` at the scrape. No label
holds what a client sent, so the number of series never grows. Left out of vLLM's list: `iteration_tokens_total`, which
would need a hook in every step, and `lora_requests_info`.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from threading import Lock
from typing import TypeVarTuple, Unpack, get_args

from prometheus_client.metrics import Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from typebar.engine.blocks import BLOCK_TOKENS
from typebar.engine.stats import Stats
from typebar.server.record import EndReason, RequestRecord

log = logging.getLogger(__name__)

_Args = TypeVarTuple("_Args")

# vLLM's bounds, and finer ones among the low: a 0.5B model on a CPU takes 10 to 40 ms a token.
# fmt: off
_FIRST_TOKEN = (.001, .005, .01, .02, .03, .04, .05, .06, .08, .1, .15, .2, .25, .3, .4, .5, .75, 1, 1.5, 2.5, 5, 7.5,
                10, 20, 40, 80, 160, 640, 2560)
_TOKEN = (.001, .002, .005, .0075, .01, .015, .02, .025, .03, .04, .05, .06, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5,
          5, 7.5, 10, 20, 40, 80)
_REQUEST = (.001, .005, .01, .02, .05, .1, .2, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480,
            960, 1920, 7680)
_SIZE = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
# fmt: on

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "request_prompt_tokens": ("Prompt tokens of a sequence, cached ones included.", _SIZE),
    "request_generation_tokens": ("Tokens that a sequence was given.", _SIZE),
    "request_params_n": ("Answers that a request asked for.", (1, 2, 5, 10, 20)),
    "request_params_max_tokens": ("The max_tokens of a sequence, where the request set it.", _SIZE),
    "time_to_first_token_seconds": ("From arrival to the first token.", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("From one step that gave a sequence tokens to the next.", _TOKEN),
    "request_time_per_output_token_seconds": ("Mean time of a sequence's tokens after the first.", _TOKEN),
    "e2e_request_latency_seconds": ("From arrival to the end.", _REQUEST),
    "request_queue_time_seconds": ("From arrival to the first step.", _REQUEST),
    "request_inference_time_seconds": ("From the first step to the last token.", _REQUEST),
    "request_prefill_time_seconds": ("From the first step to the first token.", _REQUEST),
    "request_decode_time_seconds": ("From the first token to the last.", _REQUEST),
}

_LABELS = ("model_name", "engine")
_FINISHED = ("stop", "length", "abort", "error")  # vLLM's words; every end that somebody decided is an abort
_OPENMETRICS = "application/openmetrics-text"
# prometheus_client 0.26 turns the colons of OpenMetrics samples into underscores under any other escaping.
_ACCEPT_OPENMETRICS = f"{_OPENMETRICS};version=1.0.0;escaping=allow-utf-8"


class Metrics:
    """The metrics of one served model. Every method may be called from any thread.

    model_name: the label of all series, the name under which the server offers the model. What counts a request never
    raises: a fault is logged, once.
    """

    def __init__(self, model_name: str) -> None:
        self._labels = (model_name.encode("utf-8", "replace").decode(), "0")
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._histograms = {
            name: self._histogram(f"vllm:{name}", help, bounds) for name, (help, bounds) in _HISTOGRAMS.items()
        }
        self._success = self._counters("vllm:request_success", "Sequences that ended.", "finished_reason", _FINISHED)
        self._ended = self._counters(
            "typebar:sequences_ended", "Sequences that ended, by who or what ended them.", "reason", get_args(EndReason)
        )
        rejected = Counter("typebar:requests_rejected", "Requests refused with 429.", _LABELS, registry=self._registry)
        self._rejected = rejected.labels(*self._labels)
        self._lock = Lock()
        self._totals = _Totals()
        self._unpaired: Tally[int] = Tally()
        self._fault_logged = False

    def record(self, record: RequestRecord) -> None:
        """Count a sequence that has ended."""
        self._guard(self._record, record)

    def observe_gap(self, seconds: float) -> None:
        """Count the time since the step before, for each step that gave a sequence tokens but the first."""
        self._guard(self._observe_time, "inter_token_latency_seconds", seconds)

    def rejected(self) -> None:
        """Count a request that was refused with 429."""
        self._guard(self._rejected.inc)

    def render(self, stats: Stats, accept: str | None = None) -> tuple[bytes, str]:
        """The exposition and its content type: the text format 0.0.4, or OpenMetrics where `accept`, the header of that
        name, asks for it."""
        from prometheus_client.exposition import choose_encoder  # brings servers of its own: at the first scrape

        media_types = [part.partition(";")[0].strip().lower() for part in (accept or "").split(",")]
        encode, content_type = choose_encoder(_ACCEPT_OPENMETRICS if _OPENMETRICS in media_types else "")
        with self._lock:
            totals = replace(self._totals)
        return encode(_Scrape(self._registry, self._labels, stats, totals)), content_type

    def _histogram(self, name: str, help: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(name, help, _LABELS, buckets=bounds, registry=self._registry).labels(*self._labels)

    def _counters(self, name: str, help: str, label: str, values: tuple[str, ...]) -> dict[str, Counter]:
        """A counter for each value of a label, all there from the start."""
        family = Counter(name, help, (*_LABELS, label), registry=self._registry)
        return {value: family.labels(*self._labels, value) for value in values}

    def _guard(self, count: Callable[[Unpack[_Args]], None], *args: *_Args) -> None:
        try:
            count(*args)
        except Exception:
            if not self._fault_logged:
                self._fault_logged = True
                log.exception("the metrics miss a request; further faults of this kind are not logged")

    def _record(self, record: RequestRecord) -> None:
        self._ended[record.reason].inc()
        self._success[record.reason if record.reason in _FINISHED else "abort"].inc()
        self._observe("request_prompt_tokens", record.prompt_tokens)
        self._observe("request_generation_tokens", record.completion_tokens)
        if record.max_tokens is not None:
            self._observe("request_params_max_tokens", record.max_tokens)
        self._observe_time("time_to_first_token_seconds", record.ttft)
        self._observe_time("e2e_request_latency_seconds", record.e2e)
        self._observe_time("request_queue_time_seconds", record.queue)
        self._observe_time("request_prefill_time_seconds", record.prefill)
        self._observe_time("request_decode_time_seconds", record.decode)
        if record.prefill > 0:
            self._observe_time("request_inference_time_seconds", record.prefill + record.decode)
        if record.completion_tokens > 1:
            self._observe_time("request_time_per_output_token_seconds", record.decode / (record.completion_tokens - 1))
        with self._lock:
            self._totals.add(record)
            whole = self._is_whole(record.n)
        if whole:
            self._observe("request_params_n", record.n)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def _observe_time(self, name: str, seconds: float) -> None:
        """Nothing for 0, which means that a request did not come so far, nor for what no clock can say."""
        if 0 < seconds < inf:
            self._observe(name, seconds)

    def _is_whole(self, n: int) -> bool:
        """Whether a record makes a request complete: n of them do."""
        self._unpaired[n] += 1
        if self._unpaired[n] < n:
            return False
        del self._unpaired[n]
        return True


@dataclass(slots=True)
class _Totals:
    """Sums over ended sequences, each numerator with its denominator. Prompt tokens are those computed, not cached."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0
    predicted_after_first: int = 0

    def add(self, record: RequestRecord) -> None:
        self.predicted_tokens += record.completion_tokens
        if 0 < record.prefill < inf:
            self.prompt_tokens += max(0, record.prompt_tokens - record.cached_tokens)
            self.prompt_seconds += record.prefill
        if 0 < record.decode < inf:
            self.predicted_after_first += max(0, record.completion_tokens - 1)
            self.predicted_seconds += record.decode

    @property
    def prompt_speed(self) -> float:
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def predicted_speed(self) -> float:
        return self.predicted_after_first / self.predicted_seconds if self.predicted_seconds else 0.0


class _Scrape(Collector):
    """All metrics at one moment."""

    def __init__(self, registry: CollectorRegistry, labels: tuple[str, str], stats: Stats, totals: _Totals) -> None:
        self._registry = registry
        self._labels = dict(zip(_LABELS, labels, strict=True))
        self._stats, self._totals = stats, totals

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        yield from self._vllm()
        yield from self._llamacpp()

    def _vllm(self) -> Iterator[Metric]:
        stats = self._stats
        used = 1 - stats.available_blocks / stats.kv_blocks if stats.kv_blocks else 0.0
        filled = 1 - stats.free_blocks / stats.kv_blocks if stats.kv_blocks else 0.0
        gauges = (
            ("num_requests_running", "Sequences that are computed.", stats.running),
            ("num_requests_waiting", "Sequences that wait for a seat.", stats.waiting),
            ("kv_cache_usage_perc", "KV blocks that running sequences hold, 0 to 1.", used),
        )
        counters = (
            ("prefix_cache_queries", "Prompt tokens of ended sequences that were looked up.", stats.queried_tokens),
            ("prefix_cache_hits", "Prompt tokens of ended sequences that the cache held.", stats.cached_tokens),
            ("num_preemptions", "Times that a sequence lost its blocks to others.", stats.preemptions),
            ("prompt_tokens", "Prompt tokens of ended sequences, cached ones included.", stats.prompt_tokens),
            ("generation_tokens", "Tokens drawn.", stats.generated_tokens),
            ("spec_decode_num_draft_tokens", "Guesses that steps checked.", stats.proposed_tokens),
            ("spec_decode_num_accepted_tokens", "Guesses that came true.", stats.accepted_tokens),
        )
        for name, help, value in gauges:
            yield _family(GaugeMetricFamily(f"vllm:{name}", help), self._labels, value)
        for name, help, count in counters:
            yield _family(CounterMetricFamily(f"vllm:{name}", help), self._labels, count)
        help = "KV blocks that hold something, 0 to 1: in use or kept for reuse."
        yield _family(GaugeMetricFamily("typebar:kv_cache_filled_perc", help), self._labels, filled)
        info: Metric = GaugeMetricFamily("vllm:cache_config_info", "The KV cache: tokens a block, blocks.")
        if stats.kv_blocks:  # "gpu" is vLLM's word, whatever holds the blocks
            config = {"block_size": str(BLOCK_TOKENS), "num_gpu_blocks": str(stats.kv_blocks)}
            info = _family(info, {**self._labels, **config}, 1)
        yield info

    def _llamacpp(self) -> Iterator[Metric]:
        """Without labels, as llama-server's are. Speeds are means since the start, so that a scrape resets nothing."""
        stats, totals = self._stats, self._totals
        counters = (
            ("prompt_tokens", "Prompt tokens computed.", totals.prompt_tokens),
            ("prompt_seconds", "Time from the first step of prompts to their first token.", totals.prompt_seconds),
            ("tokens_predicted", "Tokens of ended sequences.", totals.predicted_tokens),
            ("tokens_predicted_seconds", "Time from first tokens to last ones.", totals.predicted_seconds),
            ("n_decode", "Steps of the engine.", stats.steps),
        )
        gauges = (
            ("prompt_tokens_seconds", "Prompt tokens computed a second, mean since the start.", totals.prompt_speed),
            ("predicted_tokens_seconds", "Tokens a second and sequence, mean since the start.", totals.predicted_speed),
            ("requests_processing", "Sequences that are computed.", stats.running),
            ("requests_deferred", "Sequences that wait for a seat.", stats.waiting),
        )
        for name, help, count in counters:
            yield _family(CounterMetricFamily(f"llamacpp:{name}", help), {}, count)
        for name, help, value in gauges:
            yield _family(GaugeMetricFamily(f"llamacpp:{name}", help), {}, value)


def _family(family: Metric, labels: dict[str, str], value: float) -> Metric:
    """The family with its one sample."""
    family.add_sample(family.name + ("_total" if family.type == "counter" else ""), labels, value)
    return family
