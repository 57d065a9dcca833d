"""The page as text: everything that comes from a journal is escaped."""

from __future__ import annotations

import json
import re

from tandembus.spark.report import charts
from tandembus.spark.report.findings import Section, Table
from tandembus.spark.report.page import Fact, Page, html

EVIL = '</script><script>alert("x")</script>&amp;'


def page() -> str:
    row = {
        "label": EVIL,
        "entity": EVIL,
        "level": 0,
        "wait_p50_ms": 1,
        "wait_p90_ms": 2,
        "wait_p99_ms": 3,
    }
    section = Section(
        "waits", EVIL, EVIL, EVIL, (charts.waits([row], {(EVIL, 0): 100.0}),),
        (Table((EVIL, "n"), [(EVIL, "✗ 1 %")]),), "bad",
    )  # fmt: skip
    return html(Page(EVIL, EVIL, [Fact(EVIL, EVIL)], [section], [EVIL]))


def test_nothing_gets_out_of_its_place() -> None:
    found = page()
    assert "<script>alert" not in found
    assert found.count("<script>") == found.count("</script>") == 2
    (data,) = re.findall(r"^const FIGURES = (.*);$", found, re.MULTILINE)
    (figure,) = json.loads(data)
    assert figure["data"][0]["y"] == [
        '&lt;/script&gt;&lt;script&gt;alert("x")&lt;/script&gt;&amp;amp;'
    ] * 2  # fmt: skip


def test_a_verdict_has_its_colour() -> None:
    assert '<td class="n bad">✗ 1 %</td>' in page()


def test_every_colour_is_in_both_themes() -> None:
    """A chart names colours; the style has each of them, light and dark."""
    from pathlib import Path

    folder = Path(charts.__file__).parent
    style = (folder / "page.css").read_text()
    light, dark = style.split(':root[data-theme="dark"]')
    names = set(re.findall(r'"@([a-z-]+)"', (folder / "charts.py").read_text()))
    assert len(names) >= 8
    for name in names:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark
