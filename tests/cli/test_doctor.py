import json
import subprocess

import pytest
from commands import typebar

from typebar.cli.doctor import examine, find_problems
from typebar.memory import MIB


@pytest.fixture(scope="module")
def healthy():
    report = examine(offline=True)
    report["kernels"], report["huge_pages"] = "avx2", "madvise"
    report["cpu"] = report["cpu"] | {"quota_cpus": 0.0}
    report["memory"] = report["memory"] | {"available": 4000 * MIB}
    report["disk"] = report["disk"] | {"free": 4000 * MIB, "cached_models": []}
    report["sources"] = {"Hugging Face": None, "PyPI": "timed out"}
    return report


def test_json_tells_everything_about_this_machine():
    result = typebar("doctor", "--json", "--offline")
    report = json.loads(result.stdout)
    assert report.keys() == {
        "cpu", "kernels", "threads", "huge_pages", "memory", "bandwidth_gb_s", "disk", "sources", "problems"
    }  # fmt: skip
    assert result.returncode == (1 if report["problems"] else 0)
    assert report["kernels"] in report["cpu"]["usable_isas"]
    assert report["threads"]["count"] >= 1 and report["threads"]["reason"]
    assert all(0.1 < speed < 5000 for speed in report["bandwidth_gb_s"].values()) and "1" in report["bandwidth_gb_s"]
    assert 0 < report["memory"]["available"] <= report["memory"]["total"]
    cpus = set(subprocess.check_output(["nproc"], text=True).split())
    assert str(report["cpu"]["logical_cpus"]) in cpus
    assert report["sources"] is None


def test_text_names_the_remedy_of_each_problem():
    result = typebar("doctor", "--offline")
    for word in ("processor", "kernels", "threads", "huge pages", "memory", "bandwidth", "disk"):
        assert word in result.stdout
    assert result.stderr.count("problem:") == result.stderr.count("remedy:")
    assert (result.returncode == 0) == ("Everything is fine." in result.stdout)


def test_healthy_machine_has_no_problems(healthy):
    assert find_problems(healthy) == []


@pytest.mark.parametrize(
    ("part", "value", "what", "remedy"),
    [
        ("kernels", "scalar", "AVX2", "processor"),
        ("huge_pages", "never", "huge pages", "echo madvise"),
        ("cpu", {"quota_cpus": 0.5, "quota_source": "/sys/fs/cgroup/cpu.max"}, "0.5 of a CPU", "--cpus"),
        ("memory", {"available": 100 * MIB, "limit": "/sys/fs/cgroup/memory.max"}, "100 MiB", "smollm2"),
        ("disk", {"free": 10 * MIB, "cache": "/c", "cached_models": []}, "10 MiB are free in /c", "TYPEBAR_CACHE"),
        ("sources", {"Hugging Face": "refused", "PyPI": "timed out"}, "no source", "HF_ENDPOINT"),
    ],
)
def test_each_problem_is_found_alone(healthy, part, value, what, remedy):
    value = healthy[part] | value if isinstance(value, dict) and part != "sources" else value
    [problem] = find_problems(healthy | {part: value})
    assert what in problem.what and remedy in problem.remedy


def test_cached_model_needs_no_source_and_no_disk(healthy):
    disk = healthy["disk"] | {"free": 0, "cached_models": ["smollm2-135m-instruct"]}
    assert find_problems(healthy | {"disk": disk, "sources": {"PyPI": "refused"}}) == []
