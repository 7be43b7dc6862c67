"""/metrics: valid at any moment, monotonic, bounded, and under the names that dashboards know."""

import logging
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from typebar import LLM, SamplingParams
from typebar.engine.stats import Stats
from typebar.server.metrics import Metrics
from typebar.server.record import RequestRecord

STATS = Stats(
    running=2, waiting=1, preemptions=1, kv_blocks=100, free_blocks=60, available_blocks=70, cached_blocks=20,
    decode_ms=20.0, prefill_ms_per_token=2.0, steps=50, step_ended=1.0, requests=5, prompt_tokens=400,
    cached_tokens=160, queried_tokens=390, generated_tokens=90,
    proposed_tokens=30, accepted_tokens=12,
    finished={"stop": 2, "length": 1, "abort": 0, "error": 0},
)  # fmt: skip
RECORD = RequestRecord(
    id="chatcmpl-1", route="chat", reason="stop", prompt_tokens=120, cached_tokens=80, completion_tokens=11,
    max_tokens=64, n=1, queue=0.002, ttft=0.102, prefill=0.1, decode=0.5, e2e=0.61,
)  # fmt: skip

VLLM = {
    "gauge": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"),
    "counter": (
        "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens",
        "request_success", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
    ),
    "histogram": (
        "request_prompt_tokens", "request_generation_tokens", "request_params_n", "request_params_max_tokens",
        "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds",
    ),
}  # fmt: skip
LLAMACPP = {
    "gauge": ("prompt_tokens_seconds", "predicted_tokens_seconds", "requests_processing", "requests_deferred"),
    "counter": ("prompt_tokens", "prompt_seconds", "tokens_predicted", "tokens_predicted_seconds", "n_decode"),
}

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(metrics: Metrics, stats: Stats = STATS) -> Series:
    """Every series by name and labels; fails where one is there twice or the text does not parse."""
    series: Series = {}
    for family in parse_text(metrics.render(stats)[0].decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in series, key
            series[key] = sample.value
    return series


def value(series: Series, name: str, **labels: str) -> float:
    found = [number for (known, have), number in series.items() if known == name and labels.items() <= set(have)]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def only_grows(before: Series, after: Series) -> bool:
    growing = ("_total", "_count", "_sum", "_bucket")
    return all(after[key] >= number for key, number in before.items() if key[0].endswith(growing))


@pytest.mark.parametrize("requests", [0, 1])
def test_every_name_is_there_with_help_and_type(requests: int) -> None:
    metrics = Metrics("qwen")
    for _ in range(requests):
        metrics.record(RECORD)
    text, content_type = metrics.render(STATS)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    lines = text.decode().splitlines()
    for prefix, names in (("vllm", VLLM), ("llamacpp", LLAMACPP)):
        for type, names_of_type in names.items():
            for name in names_of_type:
                full = f"{prefix}:{name}" + ("_total" if type == "counter" else "")
                assert lines.count(f"# TYPE {full} {type}") == 1
                assert sum(line.startswith(f"# HELP {full} ") for line in lines) == 1
    assert all(math.isfinite(number) for number in scrape(metrics).values())
    assert not any("_created" in line for line in lines)


def test_openmetrics_comes_only_where_it_is_asked_for_and_keeps_the_colons() -> None:
    metrics = Metrics("qwen")
    metrics.record(RECORD)
    prometheus_3 = (
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
        "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
    )
    for accept in (prometheus_3, "application/openmetrics-text", "Application/OpenMetrics-Text; version=1.0.0"):
        text, content_type = metrics.render(STATS, accept)
        assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
        families = list(parse_openmetrics(text.decode()))
        assert {"vllm:prompt_tokens", "vllm:time_to_first_token_seconds"} <= {family.name for family in families}
        for family in families:  # samples that do not belong to a family would be families of their own
            assert family.documentation and family.type != "unknown", family.name
    for accept in (
        None,
        "",
        "*/*",
        "text/html, */*;q=0.8",
        "text/plain;version=1.0.0;escaping=allow-utf-8",
        ";;,=,\x00",
    ):
        assert metrics.render(STATS, accept)[1] == "text/plain; version=0.0.4; charset=utf-8"


def test_values_of_the_engine() -> None:
    series = scrape(Metrics("qwen"))
    expected = {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 1,
        "vllm:kv_cache_usage_perc": 0.3,
        "typebar:kv_cache_filled_perc": 0.4,
        "vllm:prefix_cache_queries_total": 390,
        "vllm:prefix_cache_hits_total": 160,
        "vllm:num_preemptions_total": 1,
        "vllm:prompt_tokens_total": 400,
        "vllm:generation_tokens_total": 90,
        "vllm:spec_decode_num_draft_tokens_total": 30,
        "vllm:spec_decode_num_accepted_tokens_total": 12,
    }
    for name, number in expected.items():
        assert value(series, name, model_name="qwen") == pytest.approx(number)
    assert value(series, "vllm:cache_config_info", block_size="16", num_gpu_blocks="100") == 1
    assert value(series, "llamacpp:requests_processing") == 2
    assert value(series, "llamacpp:requests_deferred") == 1
    assert value(series, "llamacpp:n_decode_total") == 50


def test_values_of_a_request() -> None:
    metrics = Metrics("qwen")
    metrics.record(RECORD)
    metrics.observe_gap(0.05)
    metrics.rejected()
    series = scrape(metrics)
    expected = {
        "request_prompt_tokens": 120,
        "request_generation_tokens": 11,
        "request_params_n": 1,
        "request_params_max_tokens": 64,
        "time_to_first_token_seconds": 0.102,
        "inter_token_latency_seconds": 0.05,
        "request_time_per_output_token_seconds": 0.05,
        "e2e_request_latency_seconds": 0.61,
        "request_queue_time_seconds": 0.002,
        "request_inference_time_seconds": 0.6,
        "request_prefill_time_seconds": 0.1,
        "request_decode_time_seconds": 0.5,
    }
    for name, number in expected.items():
        assert value(series, f"vllm:{name}_count") == 1
        assert value(series, f"vllm:{name}_sum") == pytest.approx(number)
    assert value(series, "typebar:requests_rejected_total") == 1
    assert value(series, "llamacpp:prompt_tokens_total") == 40
    assert value(series, "llamacpp:prompt_tokens_seconds") == pytest.approx(400)
    assert value(series, "llamacpp:tokens_predicted_total") == 11
    assert value(series, "llamacpp:predicted_tokens_seconds") == pytest.approx(20)


def test_a_bound_of_vllm_is_a_bound_here() -> None:
    bounds = {"time_to_first_token_seconds": (0.06, 0.75, 2560), "e2e_request_latency_seconds": (0.3, 0.8, 7680)}
    series = scrape(Metrics("qwen"))
    for name, values in bounds.items():
        for bound in values:
            assert value(series, f"vllm:{name}_bucket", le=str(float(bound))) == 0


@pytest.mark.parametrize(
    ("reason", "finished"),
    [("stop", "stop"), ("length", "length"), ("error", "error")]
    + [(reason, "abort") for reason in ("cancelled", "timeout", "overflow", "shutdown")],
)
def test_every_end_is_one_of_vllms_and_counted_by_itself_too(reason: str, finished: str) -> None:
    metrics = Metrics("qwen")
    metrics.record(replace(RECORD, reason=reason))
    series = scrape(metrics)
    assert value(series, "vllm:request_success_total", finished_reason=finished) == 1
    assert value(series, "typebar:sequences_ended_total", reason=reason) == 1
    assert sum(number for (name, _), number in series.items() if name == "vllm:request_success_total") == 1


def test_a_request_that_never_ran_has_no_times_but_its_own() -> None:
    metrics = Metrics("qwen")
    metrics.record(
        replace(RECORD, reason="cancelled", completion_tokens=0, queue=0.0, ttft=0.0, prefill=0.0, decode=0.0, e2e=3.0)
    )
    series = scrape(metrics)
    counts = {name: value(series, f"vllm:{name}_count") for name in VLLM["histogram"] if name.endswith("_seconds")}
    assert {name for name, count in counts.items() if count} == {"e2e_request_latency_seconds"}
    assert value(series, "llamacpp:prompt_tokens_total") == 0


def test_a_request_for_three_answers_counts_once() -> None:
    metrics = Metrics("qwen")
    for record in [replace(RECORD, n=3)] * 2 + [RECORD] + [replace(RECORD, n=3)] * 4:
        metrics.record(record)
    series = scrape(metrics)
    assert value(series, "vllm:request_params_n_count") == 3
    assert value(series, "vllm:request_params_n_sum") == 7


def test_what_clients_send_adds_no_series() -> None:
    metrics = Metrics("qwen")
    before = scrape(metrics)
    for i in range(1000):
        odd = f'm-{i}"}} 1\n\\\x00\ud800模型'
        metrics.record(replace(RECORD, id=odd, route=odd, reason="error", error=odd, n=i % 9, max_tokens=i))
    after = scrape(metrics)
    assert before.keys() == after.keys()
    assert value(after, "vllm:request_success_total", finished_reason="error") == 1000


@pytest.mark.parametrize("name", ["", 'a"b', "a\nb\\n", "模型 é", "{}=,#", "x" * 5000, "a\r\x00\x1b[31m"])
def test_a_served_name_of_any_kind_comes_back(name: str) -> None:
    assert value(scrape(Metrics(name)), "vllm:num_requests_running", model_name=name) == 2


def test_a_served_name_from_a_path_that_is_not_utf8_is_shown() -> None:
    assert value(scrape(Metrics("m\udcff.gguf")), "vllm:num_requests_running", model_name="m?.gguf") == 2


def test_numbers_that_no_clock_gives_do_not_turn_totals_back_or_into_nan() -> None:
    metrics = Metrics("qwen")
    before = scrape(metrics)
    for odd in (-1.0, math.nan, math.inf, -math.inf):
        metrics.record(replace(RECORD, queue=odd, ttft=odd, prefill=odd, decode=odd, e2e=odd))
        metrics.observe_gap(odd)
        after = scrape(metrics)
        assert all(math.isfinite(number) for number in after.values())
        assert only_grows(before, after)
        before = after


def test_a_fault_is_logged_once_and_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics("qwen")
    with caplog.at_level(logging.ERROR, "typebar"):
        for _ in range(5):
            metrics.record(replace(RECORD, reason="unheard of"))
            metrics.observe_gap("soon")  # type: ignore[arg-type]
    assert len(caplog.records) == 1
    metrics.record(RECORD)
    assert value(scrape(metrics), "vllm:request_success_total", finished_reason="stop") == 1


def test_scrapers_in_threads_see_totals_that_only_grow() -> None:
    metrics = Metrics("qwen")
    seen: dict[int, list[Series]] = {0: [], 1: []}

    def scraper(which: int) -> None:
        for steps in range(20):
            seen[which].append(scrape(metrics, replace(STATS, steps=steps, prompt_tokens=400 + steps)))

    def writer() -> None:
        for _ in range(500):
            metrics.record(RECORD)
            metrics.observe_gap(0.02)

    threads = [Thread(target=writer), *(Thread(target=scraper, args=(which,)) for which in seen)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for scrapes in seen.values():
        assert len(scrapes) == 20
        assert all(only_grows(before, after) for before, after in pairwise(scrapes))
    assert value(scrape(metrics), "vllm:e2e_request_latency_seconds_count") == 500
    assert value(scrape(metrics), "llamacpp:tokens_predicted_total") == 5500


def test_two_servers_in_a_process_do_not_share_numbers() -> None:
    first, second = Metrics("a"), Metrics("b")
    first.record(RECORD)
    assert value(scrape(first), "vllm:request_success_total", finished_reason="stop") == 1
    assert value(scrape(second), "vllm:request_success_total", finished_reason="stop") == 0


def test_a_real_engine_is_counted(tiny_path: Path) -> None:
    metrics = Metrics("tiny")
    with LLM(str(tiny_path)) as llm:
        before = scrape(metrics, llm.stats())
        for _ in range(2):
            llm.generate("0123456789" * 10, SamplingParams(max_tokens=4, ignore_eos=True))
        after = scrape(metrics, llm.stats())
    assert only_grows(before, after)
    assert value(after, "vllm:generation_tokens_total") == 8
    assert 0 < value(after, "vllm:prefix_cache_hits_total") < value(after, "vllm:prefix_cache_queries_total")
    assert value(after, "vllm:num_requests_running") == 0
    assert value(after, "vllm:kv_cache_usage_perc") == 0
    assert 0 < value(after, "typebar:kv_cache_filled_perc") <= 1
