"""Prometheus's text format, read as strictly as Prometheus reads it: the judge of `/metrics`.

Written from the format's description (exposition formats, version 0.0.4), not from our writer.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final

NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
SAMPLE: Final = re.compile(r"([^\s{]+)(?:\{(.*)\})? (\S+)")
KINDS: Final = ("counter", "gauge", "histogram", "summary", "untyped")
SUFFIXES: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


@dataclass
class Family:
    name: str
    kind: str = "untyped"
    help: str | None = None
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """The families of a page. AssertionError for what Prometheus would refuse, or warn of."""
    assert text.endswith("\n"), "the last line ends"
    families: dict[str, Family] = {}
    current: Family | None = None
    for line in text[:-1].split("\n"):
        assert line == line.strip()
        assert line, "no empty lines are needed"
        if line.startswith("#"):
            mark, word, name, rest = line.split(" ", 3)
            assert (mark, word in ("HELP", "TYPE")) == ("#", True), line
            assert NAME.fullmatch(name), line
            if current is None or current.name != name:
                assert name not in families, f"{name} is in two places"
                current = families[name] = Family(name)
            if word == "HELP":
                assert current.help is None, line
                current.help = rest
            else:
                assert rest in KINDS, line
                assert not current.samples, "the type comes before the samples"
                current.kind = rest
            continue
        found = SAMPLE.fullmatch(line)
        assert found is not None, line
        name, labels, value = found[1], _labels(found[2] or ""), _value(found[3])
        assert current is not None, f"{name} has no type"
        allowed = [current.name + suffix for suffix in SUFFIXES.get(current.kind, ("",))]
        assert name in allowed, f"{name} is not of the family {current.name}"
        key = (name, frozenset(labels.items()))
        assert key not in current.samples, f"twice: {line}"
        current.samples[key] = value
    for family in families.values():
        _check(family)
    return families


def _labels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        label = LABEL.match(text, at)
        assert label is not None, text
        assert label[1] not in found, text
        found[label[1]] = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], label[2])
        at = label.end()
    return found


def _value(text: str) -> float:
    return {"+Inf": math.inf, "-Inf": -math.inf, "NaN": math.nan}.get(text) or float(text)


def _check(family: Family) -> None:
    if family.kind == "counter":
        assert family.name.endswith("_total"), family.name
        assert all(value >= 0 for value in family.samples.values())
    if family.kind != "histogram":
        return
    rows: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    for (name, labels), value in family.samples.items():
        if name.endswith("_bucket"):
            bounds = [_value(v) for k, v in labels if k == "le"]
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            rows.setdefault(rest, []).append((bounds[0], value))
    for rest, buckets in rows.items():
        buckets.sort()
        assert buckets[-1][0] == math.inf, f"{family.name} has a last bucket"
        values = [value for _, value in buckets]
        assert values == sorted(values), f"{family.name}: buckets add up"
        assert family.samples[f"{family.name}_count", rest] == values[-1]
        assert (f"{family.name}_sum", rest) in family.samples
