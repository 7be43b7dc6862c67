"""Perplexity and divergence against figures that are computed in another way."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tiny_model import TinyModel, tiny_forward, write_tiny_gguf
from typebar.errors import TypebarError
from typebar.eval import kept as kept_module
from typebar.eval.divergence import Measured, joined, kl_divergence, log_softmax, measure, measure_reference
from typebar.eval.kept import KeptLogProbs
from typebar.eval.texts import WINDOW, Text, read_texts, windows
from typebar.model.cache import cache_dir
from typebar.model.load import LoadedModel, load_model

TOKENS = np.random.default_rng(2).integers(0, 288, 150).tolist()  # more than two steps of 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    folder = tmp_path_factory.mktemp("scores")
    return write_tiny_gguf(folder / "m.gguf", hidden_size=256, head_dim=64, intermediate_size=512)


def loaded(model: TinyModel, quantization: str = "f32") -> LoadedModel:
    return load_model(
        model.path, quantization=quantization, max_model_len=WINDOW, max_num_seqs=1, max_step_tokens=128
    )  # fmt: skip


def test_perplexity_equals_double_precision(model: TinyModel) -> None:
    one = loaded(model)
    with KeptLogProbs(len(TOKENS) - 1, one.usable_vocab) as kept:
        found = measure_reference(one, TOKENS, kept).scores()
    logits = tiny_forward(model, TOKENS, np.float16)[:-1, : one.usable_vocab]
    log_p = np.array([log_softmax(row) for row in logits])
    assert found.tokens == len(TOKENS) - 1 and found.mean_kl is None
    assert found.perplexity == pytest.approx(np.exp(-log_p[np.arange(149), TOKENS[1:]].mean()), rel=1e-4)


def test_divergence_equals_one_computed_from_whole_logits(model: TinyModel) -> None:
    reference, other = loaded(model), loaded(model, "q4")
    vocab = reference.usable_vocab
    with KeptLogProbs(len(TOKENS) - 1, vocab) as kept:
        measure_reference(reference, TOKENS, kept)
        found = measure(other, TOKENS, kept, 0)
    table = np.arange(10, dtype=np.int32)[None]
    p, q = (
        np.concatenate(
            [
                one.native.logits(
                    np.array(TOKENS[start:end], np.int32), np.array([end - start], np.int32),
                    np.array([start], np.int32), table,
                )
                for start, end in ((0, 100), (100, 149))
            ]
        )[:, :vocab]
        for one in (reference, other)
    )  # fmt: skip
    p, q = (np.array([log_softmax(row) for row in logits]) for logits in (p, q))
    expected = (np.exp(p) * (p - q)).sum(axis=1)
    assert expected.mean() > 1e-3
    assert np.array(found.kl) == pytest.approx(expected, rel=0.02, abs=1e-5)
    scores = found.scores()
    assert scores.p99_kl == pytest.approx(np.percentile(expected, 99), rel=0.02)
    assert scores.max_kl == pytest.approx(expected.max(), rel=0.02)
    assert scores.same_top_percent == pytest.approx(100 * (p.argmax(1) == q.argmax(1)).mean())


def test_a_model_does_not_differ_from_itself(model: TinyModel) -> None:
    one = loaded(model)
    with KeptLogProbs(2 * (len(TOKENS) - 1), one.usable_vocab) as kept:
        first = measure_reference(one, TOKENS, kept)
        measure_reference(one, TOKENS[::-1], kept)
        found = [measure(one, TOKENS, kept, 0), measure(one, TOKENS[::-1], kept, len(TOKENS) - 1)]
    scores = joined(found).scores()
    assert found[0].surprise == first.surprise
    assert scores.same_top_percent == 100
    assert 0 <= scores.max_kl < 1e-5  # what f16 leaves of log p


def test_figures_of_a_known_list() -> None:
    kl = [float(n) for n in range(101)]
    scores = Measured([np.log(4.0)] * 101, kl, [True] * 50 + [False] * 51).scores()
    assert scores.perplexity == pytest.approx(4) and scores.mean_kl == 50 and scores.max_kl == 100
    assert scores.p99_kl == 99 and scores.same_top_percent == pytest.approx(100 * 50 / 101)


def test_kept_predictions_leave_nothing_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TYPEBAR_CACHE", str(tmp_path))
    with KeptLogProbs(2, 3) as kept:
        kept.append(np.log([0.5, 0.25, 0.25]))
        kept.append(np.log([0.1, 0.1, 0.8]))
        row, top = kept.row(1)
        assert np.exp(row.astype(float)) == pytest.approx([0.1, 0.1, 0.8], rel=1e-3) and top == 2
        assert list((cache_dir() / "eval").iterdir()) == []


def test_too_much_to_keep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "MOST_BYTES", 1000)
    with pytest.raises(TypebarError, match="smaller --tokens"):
        KeptLogProbs(501, 1)


def test_builtin_texts_are_several_thousand_tokens(coder_path: Path) -> None:
    from typebar.model.checkpoint import open_checkpoint

    tokenizer = open_checkpoint(coder_path).build_tokenizer()
    texts = read_texts(["builtin"])
    cut = {text.name: windows(text, tokenizer, 4096) for text in texts}
    assert set(cut) == {"zh", "en", "code"}
    assert all(sum(map(len, part)) > 1200 for part in cut.values())
    for text, part in zip(texts, cut.values(), strict=True):
        assert all(len(window) == WINDOW for window in part[:-1])
        assert tokenizer.decode([token for window in part for token in window]) == text.content


def test_windows_of_a_model_that_begins_with_a_token(coder_path: Path) -> None:
    from typebar.model.checkpoint import open_checkpoint

    tokenizer = open_checkpoint(coder_path).build_tokenizer()
    tokenizer.bos_id, tokenizer.add_bos = 151643, True
    cut = windows(Text("x", "word " * 600), tokenizer, 520)
    assert [len(window) for window in cut] == [WINDOW, 10] and all(window[0] == 151643 for window in cut)


def test_no_text(tmp_path: Path) -> None:
    assert read_texts(["none"]) == []


def test_text_of_one_token_is_refused(coder_path: Path) -> None:
    from typebar.model.checkpoint import open_checkpoint

    tokenizer = open_checkpoint(coder_path).build_tokenizer()
    with pytest.raises(TypebarError, match="short has 1 tokens, but needs at least two"):
        windows(Text("short", "a"), tokenizer, 4096)
    assert [len(window) for window in windows(Text("x", "word " * 20), tokenizer, 4096, 8)] == [8, 8, 5]


def test_file_with_the_name_of_a_builtin_text_is_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zh").write_text("\ufeffmine", encoding="utf-8")
    texts = {text.name: text.content for text in read_texts(["builtin", "zh"])}
    assert list(texts) == ["zh", "en", "code", "./zh"] and texts["./zh"] == "mine" != texts["zh"]


def test_endless_file_is_refused() -> None:
    with pytest.raises(TypebarError, match="/dev/zero is longer than 64 MiB"):
        read_texts(["/dev/zero"])


def test_full_disk_is_an_error_in_plain_words(tmp_path: Path) -> None:
    """A limit on the size of files stands for the end of the disk: the last write is cut short."""
    program = (
        "import resource, numpy as np\n"
        "from typebar.eval.kept import KeptLogProbs\n"
        "with KeptLogProbs(4, 1000) as kept:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "    kept.append(np.zeros(1000))\n"
        "    kept.append(np.zeros(1000))\n"
    )
    environment = os.environ | {"TYPEBAR_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "TypebarError: the disk of" in done.stderr and "is full" in done.stderr


def test_improbable_tokens_give_finite_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TYPEBAR_CACHE", str(tmp_path))
    with KeptLogProbs(1, 2) as kept:
        kept.append(log_softmax(np.array([1e6, 0.0])))
        row, _ = kept.row(0)
    assert kl_divergence(log_softmax(row), log_softmax(np.array([1e6, 0.0]))) == 0
    assert np.isfinite(Measured([1e6]).scores().perplexity)
