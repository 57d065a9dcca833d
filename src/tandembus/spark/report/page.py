"""Sections into one HTML file that asks nobody for anything: style, scripts and data are inside,
and a Content-Security-Policy forbids the rest.

Names and texts in a journal come from whoever sent messages: everything is escaped, in the markup
and in the data of the charts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from tandembus.spark.report.charts import Figure
from tandembus.spark.report.findings import Section, Table

_HERE: Final = Path(__file__).parent
_VERDICTS: Final = {"✓": " good", "✗": " bad"}
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure at the top."""

    value: str
    label: str
    state: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    subtitle: str
    facts: Sequence[Fact]
    sections: Sequence[Section]
    notes: Sequence[str]


def html(page: Page) -> str:
    """The whole file."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    figures = [figure for section in page.sections for figure in section.figures]
    numbers = iter(range(len(figures)))
    body = "\n".join(_section(section, numbers) for section in page.sections)
    links = "".join(
        f'<a href="#{section.anchor}">{_mark(section.state)}{escape(section.title)}</a>'
        for section in page.sections
    )
    facts = "".join(_fact(fact) for fact in page.facts)
    notes = "".join(f"<li>{escape(note)}</li>" for note in page.notes)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<title>{escape(page.title)}</title>
<style>
{_part("page.css")}
</style>
</head>
<body>
<header>
<div class="bar"><p class="brand">Tandem</p><nav>{links}</nav>
<button id="theme" type="button" aria-label="light or dark">◐</button></div>
<h1>{escape(page.title)}</h1>
<p class="sub">{escape(page.subtitle)}</p>
<div class="facts">{facts}</div>
</header>
<main>
{body}
</main>
<footer><ul>{notes}</ul></footer>
<script>
{get_plotlyjs()}
</script>
<script>
const FIGURES = {_data(figures)};
{_part("page.js")}
</script>
</body>
</html>
"""


def _part(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _data(figures: Sequence[Figure]) -> str:
    """JSON that no text in it can end: neither the script nor, in plotly's labels, the text."""
    plain = json.dumps(_unmarked(figures), separators=(",", ":"), ensure_ascii=True)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _unmarked(value: object) -> object:
    """plotly reads some tags in labels, so what looks like one is written out."""
    match value:
        case str():
            return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        case dict():
            return {key: _unmarked(it) for key, it in value.items()}
        case list() | tuple():
            return [_unmarked(it) for it in value]
        case _:
            return value


def _mark(state: str) -> str:
    return f'<i class="dot {state}"></i>' if state else ""


def _fact(fact: Fact) -> str:
    return (
        f'<div class="fact {fact.state}"><b>{escape(fact.value)}</b>'
        f"<span>{escape(fact.label)}</span></div>"
    )


def _section(section: Section, numbers: object) -> str:
    assert hasattr(numbers, "__next__")
    parts = [
        f'<section id="{section.anchor}">',
        f'<p class="topic">{_mark(section.state)}{escape(section.title)}</p>',
        f"<h2>{escape(section.finding)}</h2>",
    ]
    if section.lead:
        parts.append(f'<p class="lead">{escape(section.lead)}</p>')
    for figure in section.figures:
        height = figure["layout"]["height"]
        parts.append(
            f'<div class="figure" id="figure-{next(numbers)}" style="height:{height}px"></div>'
        )
    parts += [_table(table) for table in section.tables]
    parts.append("</section>")
    return "\n".join(parts)


def _table(table: Table) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="{"" if number < table.is_text else "n"}{_VERDICTS.get(cell[:1], "")}">'
            f"{escape(cell)}</{tag}>"
            for number, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    more = f'<p class="more">{escape(table.more)}</p>' if table.more else ""
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", table.columns)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}"
    )
