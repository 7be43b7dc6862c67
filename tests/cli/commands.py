"""The `typebar` command as a process of its own."""

import subprocess
import sys

TYPEBAR = [sys.executable, "-m", "typebar"]


def typebar(*arguments, stdin="", timeout=120, **options):
    """Run a command to its end, with text or bytes on stdin."""
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    result = subprocess.run(
        [*TYPEBAR, *map(str, arguments)], input=data, capture_output=True, timeout=timeout, **options
    )
    result.stdout, result.stderr = result.stdout.decode(), result.stderr.decode()
    return result


def start(*arguments, **options):
    """A running command with pipes on its outputs, and nothing on stdin unless given."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*TYPEBAR, *map(str, arguments)], **pipes | options)


def read_some(process, count):
    """At least `count` bytes of its output as they come; fewer where it ends."""
    found = b""
    while len(found) < count and (piece := process.stdout.read1()):
        found += piece
    return found
