"""Which requirements are proven, and by which tests; which findings have tests.

Ids and texts come from docs/requirements.md, proofs from the `@pytest.mark.req("T6")` marks in
tests/. The tests are parsed, never imported or run, so that the answer is quick and has no side
effects. A mark on a class or a module (`pytestmark`) counts for each test in it.

A second table has the findings of docs/findings.md, with the tests that are named after them:
`test_fk1_…` for FK1. A finding without a test is no error, unless the page calls it fixed.

    python tools/requirements.py

Exit status: 0; 1 when a finding is called fixed without a test; 2 when a test names an unknown id.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+?) \|$", re.MULTILINE)
_FINDING = re.compile(r"^\| (F[A-Z]\d+) \| ([a-z?]+) \| (open|fixed) \| (.+?) \|$", re.MULTILINE)
_FINDING_TEST = re.compile(r"test_(f[a-z]\d+)(?:_|$)")


@dataclass(frozen=True, slots=True)
class Proof:
    """One test that carries the mark of one requirement."""

    requirement: str
    path: str
    line: int
    test: str


class UnknownIdError(Exception):
    """An id that neither docs/requirements.md nor docs/findings.md has."""


def read_requirements(text: str) -> dict[str, str]:
    """Ids and their texts, in the order of the page."""
    rows = _ROW.findall(text)
    known = dict(rows)
    if len(known) != len(rows):
        raise ValueError("an id is in docs/requirements.md twice")
    return known


_NO_PROOF = ("pytest.mark.skip", "pytest.mark.xfail")


def _is_skipped(decorators: Sequence[ast.expr]) -> bool:
    """A test that never runs, or is expected to fail, proves nothing."""
    return any(ast.unparse(node).split("(")[0] in _NO_PROOF for node in decorators)


def proofs_in(source: str, path: str) -> Iterator[Proof]:
    """The marked tests of one file."""
    module = ast.parse(source, path)
    yield from _proofs(module.body, path, _marks(_pytestmarks(module.body)), prefix="")


def _proofs(
    body: Sequence[ast.stmt], path: str, inherited: list[str], prefix: str
) -> Iterator[Proof]:
    if _is_skipped(_pytestmarks(body)):
        return
    for node in body:
        if isinstance(node, ast.ClassDef):
            if _is_skipped(node.decorator_list):
                continue
            marks = [*inherited, *_marks(node.decorator_list), *_marks(_pytestmarks(node.body))]
            yield from _proofs(node.body, path, marks, f"{prefix}{node.name}.")
            # Hypothesis: `class TestQueue(Machine.TestCase)` has its test in the base.
            if any(
                isinstance(base, ast.Attribute) and base.attr == "TestCase" for base in node.bases
            ):
                for requirement in dict.fromkeys(marks):
                    yield Proof(requirement, path, node.lineno, prefix + node.name)
        elif (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test")
            and not _is_skipped(node.decorator_list)
        ):
            for requirement in dict.fromkeys([*inherited, *_marks(node.decorator_list)]):
                yield Proof(requirement, path, node.lineno, prefix + node.name)


def _pytestmarks(body: Sequence[ast.stmt]) -> list[ast.expr]:
    """The marks that a module or a class gives to all its tests."""
    marks: list[ast.expr] = []
    for node in body:
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if "pytestmark" in names:
                marks += node.value.elts if isinstance(node.value, ast.List) else [node.value]
    return marks


def _marks(decorators: Sequence[ast.expr]) -> list[str]:
    marks: list[str] = []
    for node in decorators:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.req":
            for argument in node.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise UnknownIdError(ast.unparse(argument))
                marks.append(argument.value)
    return marks


def collect(tests: Path) -> list[Proof]:
    """Every proof below `tests`."""
    found: list[Proof] = []
    for path in sorted(tests.rglob("test_*.py")):
        found += proofs_in(
            path.read_text(encoding="utf-8"), path.relative_to(tests.parent).as_posix()
        )
    return found


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of docs/findings.md."""

    is_fixed: bool
    what: str


def read_findings(text: str) -> dict[str, Finding]:
    """Findings by id, in the order of the page."""
    rows = _FINDING.findall(text)
    known = {each: Finding(state == "fixed", what) for each, _, state, what in rows}
    if len(known) != len(rows):
        raise ValueError("an id is in docs/findings.md twice")
    return known


def finding_tests_in(source: str, path: str) -> Iterator[Proof]:
    """The tests of one file that are named after a finding."""
    body = ast.parse(source, path).body
    if _is_skipped(_pytestmarks(body)):
        return
    methods = [
        each
        for node in body
        if isinstance(node, ast.ClassDef)
        and not _is_skipped([*node.decorator_list, *_pytestmarks(node.body)])
        for each in node.body
    ]
    for node in (*body, *methods):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_skipped(node.decorator_list):
                continue
            match = _FINDING_TEST.match(node.name)
            if match is not None:
                yield Proof(match[1].upper(), path, node.lineno, node.name)


def collect_finding_tests(tests: Path) -> list[Proof]:
    """Every test below `tests` that is named after a finding."""
    found: list[Proof] = []
    for path in sorted(tests.rglob("test_*.py")):
        name = path.relative_to(tests.parent).as_posix()
        found += finding_tests_in(path.read_text(encoding="utf-8"), name)
    return found


def print_findings(known: dict[str, Finding], tests: Sequence[Proof]) -> None:
    by_id: dict[str, list[Proof]] = {each: [] for each in known}
    for proof in tests:
        by_id[proof.requirement].append(proof)
    print("\nFindings")
    for each, finding in known.items():
        if by_id[each]:
            shown = finding.what if len(finding.what) <= 58 else f"{finding.what[:57]}…"
            state = "fixed" if finding.is_fixed else "open"
            print(f"{each:5}{state:6}{shown:58} {len(by_id[each]):3}  {_places(by_id[each])}")
    untested = [each for each in known if not by_id[each]]
    print(f"\n{len(known) - len(untested)} of {len(known)} have tests")
    print(f"open, without a test: {' '.join(untested) or 'none'}")


def _places(tests: Sequence[Proof]) -> str:
    """Where they are, with the count of each file."""
    places: dict[str, int] = {}
    for proof in tests:
        place = proof.path.removeprefix("tests/")
        places[place] = places.get(place, 0) + 1
    return ", ".join(f"{place} ({count})" for place, count in places.items())


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description="Which requirements are proven, and by which tests."
    )
    parser.parse_args(arguments)

    known = read_requirements((root / "docs" / "requirements.md").read_text(encoding="utf-8"))
    try:
        proofs = collect(root / "tests")
        for proof in proofs:
            if proof.requirement not in known:
                raise UnknownIdError(f"{proof.requirement} in {proof.path}:{proof.line}")
        page = root / "docs" / "findings.md"
        findings = read_findings(page.read_text(encoding="utf-8")) if page.exists() else {}
        finding_tests = collect_finding_tests(root / "tests")
        for proof in finding_tests:
            if proof.requirement not in findings:
                raise UnknownIdError(f"{proof.test} in {proof.path}:{proof.line}")
    except UnknownIdError as error:
        print(f"unknown id: {error}", file=sys.stderr)
        return 2

    by_id: dict[str, list[Proof]] = {requirement: [] for requirement in known}
    for proof in proofs:
        by_id[proof.requirement].append(proof)
    print_table(known, by_id)
    print_findings(findings, finding_tests)
    tested = {proof.requirement for proof in finding_tests}
    untested = [each for each, it in findings.items() if it.is_fixed and each not in tested]
    if untested:
        print(f"\ncalled fixed, and without a test: {' '.join(untested)}", file=sys.stderr)
        return 1
    return 0


def print_table(known: dict[str, str], by_id: dict[str, list[Proof]]) -> None:
    for requirement, what in known.items():
        if not (tests := by_id[requirement]):
            continue
        shown = what if len(what) <= 64 else f"{what[:63]}…"
        print(f"{requirement:4} {shown:64} {len(tests):4}  {_places(tests)}")
    proven = [requirement for requirement in known if by_id[requirement]]
    open_ids = [requirement for requirement in known if not by_id[requirement]]
    print(f"\n{len(proven)} of {len(known)} proven")
    print(f"without a test yet: {' '.join(open_ids) or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
