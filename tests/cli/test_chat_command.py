import json
import signal
import subprocess

import pytest
from commands import read_some, start, typebar

GREEDY = ("--temperature", "0", "--max-tokens", "30")


def test_conversation_over_a_pipe(coder_path, tmp_path):
    saved = tmp_path / "talk.json"
    lines = ["My name is Ada. Say hello.", "What is my name?", "/stats", f"/save {saved}", "/quit", "never asked"]
    result = typebar("chat", "-m", coder_path, *GREEDY, stdin="\n".join(lines))
    assert result.returncode == 0
    assert "Ada" in result.stdout.splitlines()[-1]
    messages = json.loads(saved.read_text())
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[0]["content"] == lines[0] and messages[3]["content"] in result.stdout
    kept = next(line for line in result.stderr.splitlines() if line.startswith("last answer"))
    assert int(kept.split(" of them")[0].split()[-1]) > 20


def talk(tiny_path, *lines):
    result = typebar("chat", "-m", tiny_path, "--temperature", "0", "--max-tokens", "5", stdin="\n".join(lines))
    assert result.returncode == 0 and "Traceback" not in result.stderr
    return result


def saved(tiny_path, tmp_path, *lines):
    path = tmp_path / "saved.json"
    talk(tiny_path, *lines, f"/save {path}")
    return json.loads(path.read_text())


def contents(messages, role="user"):
    return [message["content"] for message in messages if message["role"] == role]


def test_reset_forgets(tiny_path, tmp_path):
    assert contents(saved(tiny_path, tmp_path, "one", "/reset", "two")) == ["two"]


def test_system_message(tiny_path, tmp_path):
    messages = saved(tiny_path, tmp_path, "one", "/system be brief", "two")
    assert messages[0] == {"role": "system", "content": "be brief"} and contents(messages) == ["two"]
    assert contents(saved(tiny_path, tmp_path, "/system x", "/system", "two"), "system") == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a\\", "b\\", "c"], "a\nb\nc"), (['"""a', "  b", 'c"""'], "a\n  b\nc"), (['"""one line"""'], "one line"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"), (["/usr/bin is a path"], "/usr/bin is a path"), (["a\r"], "a"),
    ],
)  # fmt: skip
def test_messages_of_several_lines(tiny_path, tmp_path, lines, message):
    assert contents(saved(tiny_path, tmp_path, *lines)) == [message]


def test_commands_that_are_wrong_are_said(tiny_path):
    result = talk(tiny_path, "/nothing", "/save", "/save /no/such/folder/x", "/help", "")
    assert "There is no /nothing" in result.stderr and "/save FILE" in result.stderr
    assert "/no/such/folder" in result.stderr and "/reset" in result.stderr
    assert not result.stdout


def test_message_too_long_for_the_context_is_refused_and_forgotten(tiny_path, tmp_path):
    messages = saved(tiny_path, tmp_path, "x " * 3000, "short")
    assert contents(messages) == ["short"]


def test_ctrl_c_stops_the_answer_and_not_the_program(coder_path):
    process = start("chat", "-m", coder_path, "--seed", "1", stdin=subprocess.PIPE)
    process.stdin.write(b"Write 5000 words about the sea.\n")
    process.stdin.flush()
    assert len(read_some(process, 20)) >= 20
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(b"What is 2 + 2? Only the number.\n/stats\n", timeout=60)
    assert process.returncode == 0, errors
    assert b"4" in rest.splitlines()[-1]
    assert b"engine: 2 requests" in errors
