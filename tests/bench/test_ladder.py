"""The ladder on a tiny random model: every step is really run."""

from pathlib import Path

import pytest

from typebar.bench.ladder import climb, further_steps, steps


def test_every_step_is_run_and_has_its_figures(tiny_path: Path) -> None:
    done: list[float] = []
    report = climb(tiny_path, 2, False, False, lambda doing, share: done.append(share))
    rows = {row["title"]: row for row in report["steps"]}
    assert list(rows) == [step.title for step in (*steps(2, False), *further_steps(1))]
    for title, row in rows.items():
        assert row["first_token_ms"] is None if row["speed"] == "edit_tps" else row["first_token_ms"] > 0, title
        if row["memory"]:
            assert row["tokens_s"] > 0 and row["peak_rss_mb"] > 0, title
    for title in ("a file edited", "+ speculation", "+ 4 users in one batch"):
        assert rows[title]["tokens_s"] > 0
    assert report["threads"]["best"] in (1, 2)
    assert done == sorted(done) and done[-1] < 1


@pytest.mark.parametrize(("most", "tried"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (64, [1, 2, 4, 8, 16, 32, 64])])
def test_thread_counts_double_up_to_the_most(most: int, tried: list[int]) -> None:
    assert [step.threads for step in steps(most, False) if step.quantization == "keep"] == tried


def test_transformers_is_the_first_step_where_it_is_there() -> None:
    first = steps(2, True)[0]
    assert first.quantization is None and first.title.startswith("transformers")
    assert all(step.quantization for step in steps(2, False))
