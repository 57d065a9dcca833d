"""`make search` and `make long`: a fault put in on purpose is found, and its command repeats it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools import harnesses, long, pythons, search
from tools.harnesses import HARNESSES, Harness, Outcome, as_typed, run, seed_of

ROOT = Path(__file__).resolve().parents[2]
MOST_SLICES = 5
"""Slices in which a planted fault has to be found; nearly always it is the first."""
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "node_modules", "*.md")


@dataclass(frozen=True, slots=True)
class Plant:
    """A fault: one place of the product, changed as a tired person could have written it."""

    target: str
    path: str
    right: str
    wrong: str


PLANTS = (
    # The delivery that reaches the limit goes back to the queue.
    Plant("model", "core/lifecycle.py", "count >= limit", "count > limit"),
    # Ids are forgotten at a restart.
    Plant("simulate", "core/duplicates.py", "dict(_ROW.iter_unpack(rows))", "{}"),
    # A new segment has its name before it is on disk.
    Plant("powercut", "store/files.py", "(header)], 0)\n        file.sync()", "(header)], 0)"),
    # Of several that were removed at once, a restart brings all but one back.
    Plant("kill", "core/replay.py", "queue.remove(number)", "queue.remove(number); break"),
    # Levels age half as fast as they are told to.
    Plant("priority-order", "core/ready.py", "// self._aging", "// (2 * self._aging)"),
    # `true AND true` is false.
    Plant("sql", "core/sql_compile.py", "result: Truth = True", "result: Truth = False"),
    # Frames change places although one entity forwards to the other.
    Plant("frames", "server/rows.py", "namespace.find(entity).stands_alone", "True"),
    # Some values that are cut short end the connection with a stack trace.
    Plant("fuzz", "amqp/types.py", "(IndexError, StructError)", "StructError"),
    # What the primary did not take is completed.
    Plant("outage-hours", "pairing/syphon.py", "._hold(path, error)", "._complete(items)"),
    # The audit does not look at the life of a message. (Most other faults show in two places.)
    Plant("audit-faults", "spark/pipelines/audit.py", "        _lives(checked),\n", ""),
)


def typed(command: str, tree: Path) -> subprocess.CompletedProcess[str]:
    """A command as a person types it, in that tree, with the packages of this one."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    given = f"VENV={sys.prefix} PYTHONPATH={tree / 'src'}:{tree}"
    return subprocess.run(
        [*shlex.split(command), *shlex.split(given)],
        cwd=tree, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def copy_with(plant: Plant, folder: Path) -> Path:
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
    path = tree / "src" / "tandembus" / plant.path
    source = path.read_text(encoding="utf-8")
    assert plant.right in source, f"{plant.path} has changed: plant the fault elsewhere"
    path.write_text(source.replace(plant.right, plant.wrong), encoding="utf-8")
    return tree


def searched_until_found(plant: Plant, tree: Path) -> subprocess.CompletedProcess[str]:
    """The search that finds the fault: one slice, then others with the seeds of other commits,
    since what one seed meets changes with the code. They are counted, not timed, so that a busy
    machine searches as much as an idle one."""
    for number in range(MOST_SLICES):
        seeds = f"--only {plant.target} --commit a-canary-{number}"
        searched = typed(f'make search MINUTES=0 ARGS="{seeds}"', tree)
        if searched.returncode:
            return searched
    pytest.fail(f"{MOST_SLICES} slices of {plant.target} did not find it:\n{searched.stdout}")


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(each, id=each.target, marks=[pytest.mark.long] * (each.target != "model"))
        for each in PLANTS
    ],
)
def test_a_planted_fault_is_found_and_repeated(plant: Plant, tmp_path: Path) -> None:
    """The search says which harness failed, and how to see it again; with the fault the command
    fails, without it it passes."""
    tree = copy_with(plant, tmp_path)
    searched = searched_until_found(plant, tree)
    assert not (tree / ".venv").exists(), "it has failed for another reason: VENV did not arrive"
    assert re.search(rf"{plant.target} .*FAILED", searched.stdout), searched.stdout
    repeats = re.findall(r"^repeat: (make .+)$", searched.stdout, re.MULTILINE)
    assert len(repeats) == 1, searched.stdout
    again = typed(repeats[0], tree)
    assert again.returncode != 0, f"{repeats[0]}\n{again.stdout}{again.stderr}"
    intact = typed(repeats[0], ROOT)
    assert intact.returncode == 0, f"{repeats[0]}\n{intact.stdout}{intact.stderr}"


def test_every_searched_harness_has_a_plant() -> None:
    """A harness that could find nothing would say nothing."""
    assert {each.target for each in PLANTS} == {each.target for each in search.SEARCHED}


def test_a_commit_has_its_own_seeds() -> None:
    """The same on every machine, others for the next commit, the next slice, another harness."""
    assert seed_of("1a2b", "model", 3) == seed_of("1a2b", "model", 3)
    names = [("1a2b", "model", 3), ("1a2c", "model", 3), ("1a2b", "model", 4), ("1a2b", "kill", 3)]
    assert len({seed_of(*name) for name in names}) == len(names)


def test_what_stands_still_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    """A slice that never ends is a failure, and leaves nothing behind."""
    pid = tmp_path / "pid"
    outcome = run(["sh", "-c", f"sleep 1000 & echo $! > {pid}; wait"], at_most_s=1)
    assert outcome.code == harnesses.TIMED_OUT
    assert "far more than it takes" in outcome.lines[-1]
    until = time.monotonic() + 30
    while Path(f"/proc/{pid.read_text().strip()}/cmdline").exists() and time.monotonic() < until:
        if Path(f"/proc/{pid.read_text().strip()}/cmdline").read_bytes() == b"":
            break  # it has ended, and waits for whoever inherited it
        time.sleep(0.05)
    else:
        assert time.monotonic() < until


def test_the_harness_knows_best_how_to_repeat_it() -> None:
    """Its own line is taken; where it has none, the command of the slice."""
    harness = Harness("model", ("RUNS=60",), "--quick", seed_option="--seed ")
    command = as_typed(harness.command(7, is_slice=True))
    assert command == 'make model RUNS=60 ARGS="--quick --seed 7"'
    assert as_typed(harness.command(None)) == "make model"
    assert as_typed(Harness("starvation").command(7)) == "make starvation"
    properties = next(each for each in HARNESSES if each.target == "properties")
    assert as_typed(properties.command(7)) == "make properties ARGS=--hypothesis-seed=7"
    assert Outcome(command, 1, 0.0, ("wrong",)).repeat == command
    own = 'make model RUNS=1 ARGS="--seed 9"'
    assert Outcome(command, 1, 0.0, (f"repeat: {own}", "make: *** Error 1")).repeat == own


def test_every_target_is_a_harness_or_is_known_not_to_be() -> None:
    """Whoever adds a long target adds it to the table, or says here why not."""
    targets = set(re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    others = {
        "help", "demo", "tour", "check", "format", "requirements", "docs", "clean",  # no harnesses
        "test", "search", "long",  # these run them
        "test-cluster",  # a part of test-spark
    }  # fmt: skip
    benches = {target for target in targets if target.startswith("bench")}
    assert targets - others - benches == {each.target for each in HARNESSES}


def test_unknown_harnesses_are_refused() -> None:
    with pytest.raises(SystemExit, match="there is no harness modle here"):
        search.main(["--only", "modle"])


def test_a_long_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """What has passed on the commit by its page is not run again."""
    page = tmp_path / "long-run.md"
    book = long.Results("1a2b", page)
    command = 'make model ARGS="--seed 1"'
    book.add(long.Row("model", command, "2026-11-18", 1_300, "passed", "1 | 2, all the same"))
    book.add(long.Row("kill", "make kill", "2026-11-18", 3, "FAILED", "1 lost"))
    again = long.Results("1a2b", page)
    assert again.rows == book.rows
    assert again.has_passed("model")
    assert not again.has_passed("kill")
    assert not again.has_passed("sql")
    assert not long.Results("1a2", page).rows


def test_a_long_run_on_a_changed_tree_leaves_the_page_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has passed on the commit stays on record; what was run on changes is not remembered."""
    page = tmp_path / harnesses.PAGE
    page.parent.mkdir()
    page.write_text("as it was")
    ran: list[str] = []

    def run_one(harness: Harness, tree: object, folder: Path) -> long.Row:
        ran.append(harness.target)
        return long.Row(harness.target, f"make {harness.target}", "2026-11-18", 1, "passed", "fine")

    monkeypatch.setattr(long, "ROOT", tmp_path)
    monkeypatch.setattr(long, "other_counts", lambda _: [])
    monkeypatch.setattr(long, "commit_of_tree", lambda: ("1a2b", True))
    monkeypatch.setattr(long, "run_one", run_one)
    for _ in range(2):
        assert long.main(["--only", "sql"]) == 0
    assert ran == ["sql", "sql"]
    assert page.read_text() == "as it was"
    table = tmp_path / "build" / "long" / "1a2b-changed" / "table.md"
    assert "| `make sql` | 2026-11-18 | 1 | passed | fine |" in table.read_text()


def test_a_commit_of_the_page_alone_is_the_same_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else committing what has passed would forget it."""

    def commit(path: str) -> tuple[str, bool]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(str(time.monotonic_ns()))
        changed = harnesses.commit_of_tree()
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for each in (["add", "."], [*name, "commit", "-qm", path]):
            subprocess.run(["git", *each], cwd=tmp_path, check=True)
        assert changed[1] == (path != harnesses.PAGE)
        return harnesses.commit_of_tree()

    monkeypatch.setattr(harnesses, "ROOT", tmp_path)
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    first = commit("product.py")
    assert not first[1]
    assert commit(harnesses.PAGE) == first
    assert commit("product.py") not in (first, (first[0], True))


def test_the_table_says_what_was_not_run() -> None:
    """Silence would read as a pass."""
    row = long.Row("kill", "make kill", "2026-11-18", 61, "FAILED", "1 lost | 2 gaps")
    text = long.table("1a2b", [Harness("model"), Harness("kill")], {"kill": row})
    assert "| `make model` | | | not run | |" in text
    assert "| `make kill` | 2026-11-18 | 61 | FAILED | 1 lost \\| 2 gaps |" in text
    assert "0 of 2 passed on commit 1a2b" in text


def test_figures_are_the_lines_that_tell_the_result() -> None:
    lines = ["5 images: 0 bad", "canary: 3 of 3", "make: Leaving directory"]
    assert long.figures_of(Harness("x", figures="bad"), lines) == "5 images: 0 bad"
    assert long.figures_of(Harness("x"), lines) == "canary: 3 of 3"


def test_a_long_run_has_the_full_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was made shorter would read like one that was not."""
    full = {"LANES": "2", "ARGS": "", "MINUTES": "1", "PATH": "/bin"}
    assert long.other_counts(full) == []
    assert long.other_counts({**full, "RUNS": "10", "IMAGES": "1"}) == ["RUNS=10", "IMAGES=1"]
    shorter = {**full, "OUTAGE_HOURS": "1", "ATTACK_S": "6", "BENCH_PY": "python"}
    assert long.other_counts(shorter) == ["OUTAGE_HOURS=1", "ATTACK_S=6"]
    monkeypatch.setenv("CYCLES", "1")
    with pytest.raises(SystemExit) as refused:
        long.main([])
    assert refused.value.code == 2
    assert "CYCLES=1 is given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "told", "has_tree_changed", "verdict"),
    [
        (0, "20,000 runs, no divergence", False, "passed"),
        (0, "SKIPPED [1] a.py:9: there is no zsh\n3 passed, 1 skipped in 5 s", False, "passed"),
        (
            0,
            "SKIPPED [9] a.py:9: no chromium here\n3 passed, 9 skipped in 5 s\nfine",
            False,
            "tests were skipped: a.py:9: no chromium here",
        ),
        (1, "3 passed in 5 s", False, "FAILED"),
        (0, "3 passed in 5 s", True, "the tree was changed meanwhile"),
        (0, "4 skipped in 5 s\n20 failures, 0 lost", False, "nothing was run"),
        (0, "", False, "nothing was run"),
    ],
)
def test_only_what_ran_has_passed(
    code: int, told: str, has_tree_changed: bool, verdict: str
) -> None:
    lines = told.splitlines()
    assert long.verdict_of(code, lines, has_tree_changed=has_tree_changed) == verdict


def test_a_harness_on_another_tree_than_the_runs_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit during the run, or a file that a harness has left: what comes after it is no proof
    of the commit that the page names."""
    monkeypatch.setattr(long, "run", lambda *_, **__: Outcome("make sql", 0, 1.0, ("fine",)))
    monkeypatch.setattr(long, "commit_of_tree", lambda: ("1a2c", False))
    sql = Harness("sql")
    assert long.run_one(sql, ("1a2c", False), tmp_path).verdict == "passed"
    assert long.run_one(sql, ("1a2b", False), tmp_path).verdict != "passed"
    monkeypatch.setattr(long, "commit_of_tree", lambda: ("1a2c", True))
    assert long.run_one(sql, ("1a2c", False), tmp_path).verdict != "passed"


@pytest.mark.parametrize(
    ("reason", "is_ci", "code"),
    [
        ("there is no zsh", True, 0),
        ("there is no chromium", True, 1),
        ("there is no chromium", False, 0),
    ],
)
def test_in_ci_a_test_that_is_skipped_for_another_reason_is_a_failure(
    reason: str, is_ci: bool, code: int, tmp_path: Path
) -> None:
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "def test_that_runs(): pass\n"
        f"def test_that_does_not(): pytest.skip({reason!r})\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "test_one.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), **({"CI": "true"} if is_ci else {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("skipped in CI" in done.stdout) == bool(code)


def test_flags_of_make_do_not_reach_a_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `make -i` or `-n` around it, every harness would be green. Its variables do: else
    VENV=… would mean one environment here and another one there."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    for flags, kept in (("n", ""), ("ik -- VENV=a B=c", "-- VENV=a B=c"), (" -- B=c", "-- B=c")):
        monkeypatch.setenv("MAKEFLAGS", flags)
        told = run(["sh", "-c", 'echo "=$MAKEFLAGS$PYTEST_ADDOPTS="'], at_most_s=60)
        assert told.lines == (f"={kept}=",)


def test_without_git_nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether such a tree is the one of the last run."""
    monkeypatch.setattr(harnesses, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    commit, is_changed = harnesses.commit_of_tree()
    assert commit.startswith("version-")
    assert is_changed


@pytest.mark.parametrize("minutes", ["-1", "inf", "nan", "ten", "1e9"])
def test_minutes_that_cannot_be_are_refused(
    minutes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        search.main([f"--minutes={minutes}"])
    assert "--minutes" in capsys.readouterr().err


def test_a_python_that_is_not_here_is_no_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the one that was asked for nor none at all."""
    monkeypatch.setattr(
        pythons, "find", lambda version: Path("python") if version == "3.11" else None
    )
    monkeypatch.setattr(pythons, "run", lambda *_: "passed (1 s)")
    assert pythons.main([]) == 0
    assert "tested on 3.11; not here, or without venv: 3.12" in capsys.readouterr().out
    assert pythons.main(["--only", "3.12"]) == 1
    monkeypatch.setattr(pythons, "find", lambda _: None)
    assert pythons.main([]) == 1
    assert "tested on none" in capsys.readouterr().out
