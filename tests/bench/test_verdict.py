"""What makes a soak fail, on findings made up for it."""

import json

import pytest
from rich.console import Console

from typebar.bench.gauges import Gauges
from typebar.bench.process import Footprint
from typebar.bench.report import as_json, print_report
from typebar.bench.verdict import MIB, Findings, Sample, memory_growth, percentiles, problems

IDLE = Footprint(fds=20, threads=8, rss_anon=400 * MIB)


def findings(rss: list[float], warm: int | None = 0) -> Findings:
    """A faultless run whose process took `rss` MiB, a sample each."""
    samples = [
        Sample(second, 10 * second, Footprint(40, 8, int(mib * MIB)), Gauges(16, 3, 1.0), True)
        for second, mib in enumerate(rss)
    ]
    result = Findings(samples=samples, warm=warm, idle_before=IDLE, idle_after=IDLE)
    result.counts["completed"] = 100
    return result


def test_faultless_run_has_no_problems() -> None:
    assert problems(findings([400.0] * 30)) == []


def test_memory_that_grows_fails() -> None:
    [problem] = problems(findings([400 + 0.5 * second for second in range(60)]))
    assert "RssAnon grew by 27.5 MiB" in problem


def test_growth_within_the_bound_passes() -> None:
    assert problems(findings([400.0 + 11 * second / 60 for second in range(60)])) == []


def test_growth_during_warm_up_passes() -> None:
    growing = [300.0 + 10 * second for second in range(20)]
    assert problems(findings(growing + [500.0] * 30, warm=20)) == []
    assert problems(findings(growing + [500.0] * 30, warm=0)) != []


def test_memory_that_came_back_after_growth_fails_too() -> None:
    assert memory_growth(findings([400.0] * 10 + [450.0] * 10 + [400.0] * 10)) == 50 * MIB


def test_single_high_sample_is_no_growth() -> None:
    assert memory_growth(findings([400.0] * 10 + [480.0] + [400.0] * 10)) == 0


def test_memory_that_falls_is_no_growth() -> None:
    assert memory_growth(findings([400.0] * 10 + [300.0] * 10)) == 0


def test_warm_up_without_an_end_fails() -> None:
    [problem] = problems(findings([400.0] * 30, warm=None))
    assert "could not be judged" in problem


def test_warm_up_too_late_to_judge_fails() -> None:
    assert problems(findings([400.0] * 30, warm=28)) != []


def test_interrupted_run_owes_no_memory_figures() -> None:
    result = findings([400.0] * 30, warm=None)
    result.interrupted = True
    assert problems(result) == []


def test_unwatched_process_owes_none_either() -> None:
    result = findings([])
    result.warm = result.idle_before = result.idle_after = None
    assert problems(result) == []


@pytest.mark.parametrize(
    ("after", "name"),
    [(Footprint(26, 8, 0), "file descriptors"), (Footprint(20, 14, 0), "threads")],
)
def test_leak_between_idle_moments_fails(after: Footprint, name: str) -> None:
    result = findings([400.0] * 30)
    result.idle_after = after
    [problem] = problems(result)
    assert problem.startswith(name)


def test_wrong_text_fails() -> None:
    result = findings([400.0] * 30)
    result.wrong_text("short 1: 'Helo' instead of 'Hello'")
    [problem] = problems(result)
    assert "1 answers differ" in problem and "Helo" in problem


def test_stuck_request_fails() -> None:
    result = findings([400.0] * 30)
    result.failure("stuck: short 1 had no end after 180 s")
    [problem] = problems(result)
    assert "stuck" in problem


def test_run_without_a_complete_answer_fails() -> None:
    result = findings([400.0] * 30)
    result.counts["completed"] = 0
    assert problems(result) == ["not one request was completed"]


def test_failures_are_counted_beyond_the_kept_examples() -> None:
    result = findings([400.0] * 30)
    for number in range(50):
        result.failure(f"failure {number}")
    assert len(result.failures) < 50
    assert problems(result)[0].startswith("50 failures, first: failure 0")


def test_percentiles() -> None:
    assert percentiles([]) is None
    assert percentiles([2.0]) == {"p50": 2.0, "p95": 2.0, "p99": 2.0, "max": 2.0}
    figures = percentiles([float(value) for value in range(101)])
    assert figures == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}


def test_reports_show_the_figures_and_the_problem() -> None:
    result = findings([400 + second for second in range(60)], warm=3)
    result.latencies.gap = [0.01, 0.02, 0.03]
    result.wrong_text("short 1: [bold]x[/bold] instead of y")
    found = problems(result)
    report = json.loads(as_json(result, found))
    assert report["problems"] == found and report["latencies"]["gap"]["p50"] == 0.02
    assert report["memory_growth"] == 52 * MIB and report["latencies"]["first_text"] is None
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    print_report(console, result, found)
    text = console.export_text()
    assert "20.0" in text and "warm" in text and "[bold]x[/bold]" in text and "nothing wrong" not in text
