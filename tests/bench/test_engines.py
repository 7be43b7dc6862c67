"""Environments of other engines: made whole, or told as missing."""

import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from typebar.bench.engines import RIVALS, Engine, choose, install_missing
from typebar.errors import TypebarError

ABSENT = Engine("absent", "ours.py", "no_such_module", ("no_such_package",))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TYPEBAR_CACHE", str(tmp_path))
    return tmp_path / "peers" / "absent"


def make_with(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments get this program as their Python: a real one would ask the network for packages."""

    def create(folder: Path, with_pip: bool, clear: bool) -> None:
        (folder / "bin").mkdir(parents=True, exist_ok=not clear)
        (folder / "bin" / "python").write_text(f"#!/bin/sh\n{python}\n")
        (folder / "bin" / "python").chmod(0o755)

    monkeypatch.setattr(venv, "create", create)


def test_engine_is_found_where_it_was_installed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_with("exit 0", monkeypatch)
    assert ABSENT.python() is None
    ABSENT.install()
    assert ABSENT.python() == str(cache / "bin" / "python")


def test_engines_of_one_home_are_installed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    make_with("exit 0", monkeypatch)
    ABSENT.install()
    other = replace(ABSENT, name="absent-q4_0", weights="Q4_0", home="absent")
    assert other.python() == ABSENT.python()


def test_packages_that_cannot_be_installed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    make_with("echo no such package >&2; exit 1", monkeypatch)
    with pytest.raises(TypebarError, match="no such package"):
        ABSENT.install()
    assert ABSENT.python() is None


def test_one_that_cannot_be_installed_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    make_with('case "$*" in *no_such_package*) echo no such package >&2; exit 1;; esac', monkeypatch)
    monkeypatch.setitem(RIVALS, "absent", ABSENT)
    monkeypatch.setitem(RIVALS, "other", replace(ABSENT, name="other", packages=("some_package",)))
    told: list[str] = []
    failed = install_missing(["absent", "other"], told.append)
    assert set(failed) == {"absent"} and "no such package" in failed["absent"]
    assert told == ["installing absent", "installing other"]
    assert [engine.name for engine in choose(["absent", "other"])[0]] == ["other"]


def test_interrupted_installation_does_not_count(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    make_with("exit 0", monkeypatch)
    monkeypatch.setattr(subprocess, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ABSENT.install()
    assert (cache / "bin" / "python").exists() and ABSENT.python() is None


def test_all_engines_are_meant_by_none() -> None:
    found, missing = choose([])
    assert {engine.name for engine in found} | set(missing) == set(RIVALS)


def test_engine_named_twice_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RIVALS, "there", replace(ABSENT, name="there", module="typebar"))
    assert [engine.name for engine in choose(["there", "there"])[0]] == ["there"]


def test_environment_that_cannot_be_made_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*arguments: object, **settings: object) -> None:
        subprocess.run([sys.executable, "-c", "raise SystemExit(1)"], check=True)

    monkeypatch.setattr(venv, "create", create)
    with pytest.raises(TypebarError, match="python3-venv"):
        ABSENT.install()
