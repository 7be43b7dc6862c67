import json
import os

import pytest
from commands import typebar

from typebar.cli.compare import _read_prompts
from typebar.eval.answers import first_difference


def test_answers_of_the_real_model(coder_path, tmp_path):
    prompts, report = tmp_path / "prompts.txt", tmp_path / "report.json"
    prompts.write_text("法国的首都是哪座城市？请只写出答案，不要解释。\n\nName a colour.\n", encoding="utf-8")
    result = typebar("compare", coder_path, f"{coder_path}@q4", prompts, "--max-tokens", 12, "--json", report)
    assert result.returncode == 0, result.stderr
    found = json.loads(report.read_text())
    assert (found["a"]["quantization"], found["b"]["quantization"]) == ("keep", "q4")
    capital, colour = found["prompts"]
    assert "巴黎" in capital["a"]["text"]
    assert colour["a"]["decode_tps"] > 0 and colour["a"]["tokens"] <= 12
    for row in found["prompts"]:
        at = row["first_difference"]
        same = len(os.path.commonprefix([row["a"]["text"], row["b"]["text"]]))  # noqa: RUF071
        assert at == (None if row["a"]["text"] == row["b"]["text"] else same)
    assert "Name a colour." in result.stdout and "@q4" in result.stdout and "tokens/s" in result.stdout
    assert "of 2 answers are the same" in result.stdout


def test_prompts_from_stdin(tiny_path):
    result = typebar("compare", tiny_path, tiny_path, "-", "--max-tokens", 8, stdin="hello\n")
    assert result.returncode == 0, result.stderr
    assert "the same answer" in result.stdout and "1 of 1 answers are the same" in result.stdout


def test_prompt_longer_than_the_context_is_told_before_any_is_answered(tiny_path):
    result = typebar("compare", tiny_path, tiny_path, "-", stdin="short\n" + "xyz" * 2000)
    assert result.returncode == 1 and result.stdout == ""
    assert "prompt 2 takes" in result.stderr and "a context of 2048: shorten it" in result.stderr
    assert len(result.stderr) < 300, "no stage has begun"


def test_prompts_are_lines_and_nothing_else(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffone\u2028still one\x0cstill\r\n\n two \n".encode())
    assert _read_prompts(str(path)) == ["one\u2028still one\x0cstill", "two"]


def test_first_difference():
    assert first_difference("abc", "abc") is None
    assert first_difference("abc", "abd") == 2
    assert first_difference("abc", "ab") == 2 and first_difference("", "x") == 0


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["{tiny}", "nowhere.gguf", "-"], 1, "nowhere.gguf does not exist"),
        (["{tiny}", "{tiny}", "/nowhere.txt"], 1, "/nowhere.txt cannot be read"),
        (["{tiny}", "{tiny}", "{tiny}"], 1, "is not UTF-8 text"),
        (["{tiny}", "{tiny}", "-"], 1, "stdin holds no prompt"),
        (["{tiny}", "{tiny}", "-", "--json", "/nowhere/report.json"], 1, "/nowhere/report.json cannot be written"),
        (["{tiny}", "{tiny}"], 2, "PROMPTS"),
    ],
)
def test_errors_come_before_work(tiny_path, arguments, code, named):
    typed = "" if "no prompt" in named else "hello"
    result = typebar("compare", *(word.format(tiny=tiny_path) for word in arguments), stdin=typed)
    assert result.returncode == code and named in result.stderr and "Traceback" not in result.stderr
    assert result.stdout == ""
