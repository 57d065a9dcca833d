"""tools/requirements.py: reads the page, finds the marks, refuses what it does not know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import requirements
from tools.requirements import (
    collect,
    collect_finding_tests,
    finding_tests_in,
    proofs_in,
    read_findings,
    read_requirements,
)

ROOT = Path(__file__).resolve().parents[2]
KNOWN = read_requirements((ROOT / "docs" / "requirements.md").read_text(encoding="utf-8"))


def test_all_requirements_are_on_the_page() -> None:
    """83 of them, none left out, none twice."""
    counts = {"S": 8, "T": 23, "P": 14, "N": 15, "D": 10, "C": 13}
    assert list(KNOWN) == [f"{k}{i}" for k, count in counts.items() for i in range(1, count + 1)]


def test_every_mark_names_a_known_requirement() -> None:
    """A misspelt id would prove nothing, silently."""
    unknown = [proof for proof in collect(ROOT / "tests") if proof.requirement not in KNOWN]
    assert not unknown


SOURCE = """
import pytest
pytestmark = [pytest.mark.req("S1"), pytest.mark.long]

@pytest.mark.req("T6", "T7")
def test_a(): ...

def helper(): ...

class TestB:
    @pytest.mark.req("S1")
    async def test_c(self): ...

@pytest.mark.req("P1")
class TestMachine(Machine.TestCase): ...

@pytest.mark.skip("one day")
@pytest.mark.req("P1")
def test_d(): ...

@pytest.mark.xfail
@pytest.mark.req("P1")
def test_f(): ...

@pytest.mark.skip
class TestG:
    @pytest.mark.req("P1")
    def test_h(self): ...

class TestI:
    pytestmark = [pytest.mark.req("P1"), pytest.mark.skip]
    def test_j(self): ...

@pytest.mark.req("P1")
def outer():
    @pytest.mark.req("P1")
    def test_e(): ...
"""


def test_marks_are_found_without_running() -> None:
    """On functions, classes, modules and Hypothesis's machines; each id counts once a test. What
    pytest does not run, proves nothing."""
    found = [(proof.requirement, proof.test) for proof in proofs_in(SOURCE, "x.py")]
    assert found == [
        ("S1", "test_a"),
        ("T6", "test_a"),
        ("T7", "test_a"),
        ("S1", "TestB.test_c"),
        ("S1", "TestMachine"),
        ("P1", "TestMachine"),
    ]


@pytest.mark.parametrize(
    ("mark", "status"),
    [("S1", 0), ("S99", 2)],
)
def test_exit_status(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mark: str,
    status: int,
) -> None:
    """0: fine; 2: an unknown id."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "requirements.md").write_text("| S1 | one |\n| S2 | two |\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        f'@pytest.mark.req("{mark}")\ndef test_a(): ...\n'
    )
    assert requirements.main([], tmp_path) == status
    out = capsys.readouterr()
    if status < 2:
        assert "1 of 2 proven" in out.out
        assert "without a test yet: S2" in out.out
    else:
        assert "unknown id" in out.err


def test_findings_and_their_tests_agree() -> None:
    """Each test that is named after a finding names one of the page; what the page calls fixed
    has a test."""
    findings = read_findings((ROOT / "docs" / "findings.md").read_text(encoding="utf-8"))
    tests = collect_finding_tests(ROOT / "tests")
    assert not [proof for proof in tests if proof.requirement not in findings]
    tested = {proof.requirement for proof in tests}
    assert not [each for each, it in findings.items() if it.is_fixed and each not in tested]
    # Every row of the page is read.
    rows = (ROOT / "docs" / "findings.md").read_text("utf-8").splitlines()
    assert len(findings) == sum(line.startswith("| F") for line in rows) == 105


def test_promises_name_only_findings_that_are_open() -> None:
    """A finding that is fixed breaks no promise any more."""
    findings = read_findings((ROOT / "docs" / "findings.md").read_text(encoding="utf-8"))
    promises = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bF[A-Z]\d+\b", promises))
    assert named
    assert not [each for each in named if each in findings and findings[each].is_fixed]


def test_tests_of_findings_are_found_by_name() -> None:
    source = (
        "def test_fk1_a(): ...\ndef test_fx24(): ...\ndef test_first_b(): ...\n"
        "class TestX:\n    async def test_fl2_c(self): ...\ndef test_f1_d(): ...\n"
        "@pytest.mark.skip\ndef test_fk2_e(): ...\ndef helper():\n    def test_fk3_f(): ...\n"
    )
    source += "@pytest.mark.xfail\nclass TestZ:\n    def test_fk4_g(self): ...\n"
    found = [(each.requirement, each.test) for each in finding_tests_in(source, "x.py")]
    assert found == [("FK1", "test_fk1_a"), ("FX24", "test_fx24"), ("FL2", "test_fl2_c")]


@pytest.mark.parametrize(
    ("test", "state", "status"),
    [
        ("test_fk1_x", "open", 0),
        ("test_fk1_x", "fixed", 0),
        ("test_y", "open", 0),
        ("test_y", "fixed", 1),
        ("test_fk2_x", "open", 2),
    ],
)
def test_exit_status_of_findings(tmp_path: Path, test: str, state: str, status: int) -> None:
    """An open one is no error; an unknown name is, and so is fixed without a test."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "requirements.md").write_text("| S1 | one |\n")
    (tmp_path / "docs" / "findings.md").write_text(f"| FK1 | high | {state} | one |\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(f"def {test}(): ...\n")
    assert requirements.main([], tmp_path) == status
