import json
import os
import signal
import subprocess
import sys
import time

import pytest
from commands import read_some, start, typebar

GREEDY = ("--temperature", "0", "--max-tokens", "12")


@pytest.fixture(scope="module")
def expected(tiny_path):
    """The answer of the tiny model to "hello"."""
    result = typebar("run", "-m", tiny_path, "hello", *GREEDY)
    assert result.returncode == 0 and not result.stderr and result.stdout.endswith("\n")
    return result.stdout


def test_right_answer_of_real_weights(coder_path):
    result = typebar("run", "-m", coder_path, "用Python写一个快速排序", "--temperature", "0", "--max-tokens", "200")
    assert result.returncode == 0 and not result.stderr
    assert "def quick" in result.stdout and "```" in result.stdout


def test_json_is_one_object(coder_path):
    result = typebar("run", "-m", coder_path, "Say hi.", "--json", *GREEDY)
    assert result.returncode == 0
    report = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert report.keys() == {"text", "model", "finish_reason", "prompt_tokens", "completion_tokens", "timings"}
    assert report["text"] and report["finish_reason"] in ("stop", "length")
    assert report["prompt_tokens"] > 5 and 1 <= report["completion_tokens"] <= 12
    timings = report["timings"]
    assert timings.keys() == {"load_s", "ttft_ms", "prefill_tps", "decode_tps", "total_ms", "peak_rss_mb"}
    assert all(value > 0 for value in timings.values())
    assert timings["total_ms"] >= timings["ttft_ms"] and 300 < timings["peak_rss_mb"] < 800


def test_prompt_from_stdin(tiny_path, expected):
    assert typebar("run", "-m", tiny_path, *GREEDY, stdin="hello").stdout == expected
    assert typebar("run", "-m", tiny_path, *GREEDY, stdin=b"\xef\xbb\xbfhello").stdout == expected


def test_prompt_and_stdin_are_put_together(tiny_path):
    joined = typebar("run", "-m", tiny_path, "he\n\nllo", *GREEDY).stdout
    assert typebar("run", "-m", tiny_path, "he", *GREEDY, stdin="llo").stdout == joined


def test_streams_closed_by_the_parent_do_no_harm(tiny_path, expected):
    assert typebar("run", "-m", tiny_path, "hello", *GREEDY).stdout == expected
    command = f'exec "$0" -m typebar run -m "$1" hello {" ".join(GREEDY)} <&-'
    result = subprocess.run(["sh", "-c", command, os.sys.executable, str(tiny_path)], capture_output=True, timeout=60)
    assert result.stdout.decode() == expected


def test_options_reach_the_model(tiny_path, expected):
    for other in (("--system", "be brief"), ("--temperature", "1.5", "--seed", "1"), ("--max-tokens", "3")):
        assert typebar("run", "-m", tiny_path, "hello", *GREEDY, *other).stdout != expected
    seeded = [typebar("run", "-m", tiny_path, "hello", "--max-tokens", "12", "--seed", "9").stdout for _ in range(2)]
    assert seeded[0] == seeded[1]
    stop = expected[2:4]
    short = typebar("run", "-m", tiny_path, "hello", *GREEDY, "--stop", "never", "--stop", stop, "--json")
    assert json.loads(short.stdout)["text"] == expected[: expected.index(stop)]


def test_statistics_on_request(tiny_path, expected):
    result = typebar("run", "-m", tiny_path, "hello", *GREEDY, "--verbose")
    assert result.stdout == expected
    assert result.stderr.count("\n") == 1 and "prefill" in result.stderr and "decode" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (["hello", "--temperature", "-1"], "", 2, "temperature must be"),
        (["hello", "--top-p", "nan"], "", 2, "top_p must be"),
        (["hello", "--max-tokens", "0"], "", 2, "max_tokens must be"),
        (["hello", "--max-tokens", "x"], "", 2, "--max-tokens"),
        (["hello", "--quant", "q3"], "", 2, "quantization must be one of"),
        (["hello", "--kv-dtype", "int8"], "", 2, "kv_dtype must be one of f16, q8"),
        (["hello", "--no-such-flag"], "", 2, "--no-such-flag"),
        ([], "", 2, "give a prompt"),
        ([], b"\xc4\xe3\xba\xc3", 2, "stdin is not UTF-8"),
        (["x " * 3000], "", 1, "the context of 2048 tokens"),
    ],
)
def test_wrong_usage_is_said_clearly(tiny_path, arguments, stdin, code, message):
    result = typebar("run", "-m", tiny_path, *arguments, stdin=stdin)
    assert result.returncode == code
    assert message in result.stderr and "Traceback" not in result.stderr and not result.stdout


def test_missing_model_is_one_line():
    result = typebar("run", "-m", "/no/such.gguf", "hello")
    assert result.returncode == 1
    assert result.stderr.startswith("typebar: /no/such.gguf") and result.stderr.count("\n") == 1


def test_ctrl_c_stops_within_a_step_and_keeps_what_came(coder_path):
    process = start("run", "-m", coder_path, "Write 5000 words about the sea.", "--seed", "1")
    first = read_some(process, 20)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    text = (first + rest).decode()
    assert len(text) < 4000 and text.endswith("\n") and not errors


def test_ctrl_c_while_the_model_loads(coder_path):
    process = start("run", "-m", coder_path, "hello")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)
    assert b"Traceback" not in errors or process.returncode == -signal.SIGINT


def test_reader_that_leaves_ends_the_command(coder_path):
    process = start("run", "-m", coder_path, "Write 5000 words about the sea.")
    process.stdout.read1()
    process.stdout.close()
    _, errors = None, process.stderr.read()
    assert process.wait(30) == 141 and not errors


def test_only_what_is_needed_is_imported(tiny_path):
    script = (
        "import sys; sys.argv = ['typebar', 'run', '-m', sys.argv[1], 'hello', '--max-tokens', '1']\n"
        "from typebar.__main__ import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "print('\\n' + ' '.join(sys.modules))"
    )
    result = subprocess.run(
        [os.sys.executable, "-c", script, str(tiny_path)], capture_output=True, stdin=subprocess.DEVNULL
    )
    modules = set(result.stdout.decode().splitlines()[-1].split())
    assert "typebar.llm" in modules
    heavy = {"huggingface_hub", "rich", "torch", "transformers", "requests", "httpx", "readline", "asyncio"}
    assert not modules & heavy


@pytest.mark.parametrize(("redirect", "code"), [(">&-", 0), ("2>&-", 0), ("<&-", 0), (">/dev/full", 1)])
def test_closed_and_full_streams_give_no_traceback(coder_path, redirect, code):
    command = f'"$0" -m typebar run -m "$1" hi --max-tokens 2 {redirect}'
    result = subprocess.run(["bash", "-c", command, sys.executable, coder_path], capture_output=True, text=True)
    assert result.returncode == code and "Traceback" not in result.stderr
    if code:
        assert result.stderr.startswith("typebar: ") and "No space left" in result.stderr
