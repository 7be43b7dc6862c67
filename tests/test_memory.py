import subprocess
import sys

import numpy as np
import pytest

from typebar.memory import MIB, _cgroup_limits, available_memory, peak_rss, total_memory


@pytest.fixture
def groups(tmp_path):
    def write(path, **files):
        folder = tmp_path / "cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(f"{text}\n")

    return tmp_path, write


def limits(root, membership):
    (root / "self").write_text(membership)
    return _cgroup_limits(root / "self", root / "cgroup")


def test_tightest_of_nested_groups_v2(groups):
    root, write = groups
    write("a", memory__max=1000 * MIB, memory__current=300 * MIB, memory__stat="anon 5\ninactive_file 104857600")
    write("a/b", memory__max="max", memory__current=10)
    write("a/b/c", memory__max=2000 * MIB, memory__current=100 * MIB, memory__stat="inactive_file 0")
    found = {path.removeprefix(str(root)): room for room, path in limits(root, "0::/a/b/c\n")}
    assert found == {"/cgroup/a/b/c/memory.max": 1900 * MIB, "/cgroup/a/memory.max": 800 * MIB}


def test_v1_and_its_sign_for_no_limit(groups):
    root, write = groups
    files = {"memory__stat": "total_inactive_file 1048576"}
    write("memory/d", memory__limit_in_bytes=500 * MIB, memory__usage_in_bytes=101 * MIB, **files)
    write("memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=5)
    [(room, _)] = limits(root, "5:cpu,cpuacct:/d\n4:memory:/d\n")
    assert room == 400 * MIB


def test_used_up_group_leaves_nothing(groups):
    root, write = groups
    write("", memory__max=100, memory__current=900)
    assert [room for room, _ in limits(root, "0::/\n")] == [0]


def test_this_machine():
    available, source = available_memory()
    assert 0 < available <= total_memory() and source
    assert 5 * MIB < peak_rss() < total_memory()


def test_peak_does_not_count_the_parent():
    ballast = np.ones(300 * MIB, np.uint8)
    script = "from typebar.memory import peak_rss; print(peak_rss())"
    peak = int(subprocess.check_output([sys.executable, "-c", script]))
    assert peak < 100 * MIB < ballast.nbytes < peak_rss()
