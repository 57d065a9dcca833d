"""The log of the server: a line for people, or a JSON object for machines.

Whoever logs gives the facts that lead further as `extra=about(…)`: the tracking id that a client
was told with a refusal (T1), its address, the W3C trace context that its request carried. In the
human form they are in the text already; as JSON each is a field of its own.

The rule: a line is a line. What a client has sent cannot begin another one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

FORMATS: Final = ("human", "json")
HUMAN: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_ABOUT: Final = "tandem_about"
TRACE_NAMES: Final = ("traceparent", "Diagnostic-Id")
"""Application properties that hold a W3C trace context: OpenTelemetry's, and the SDKs' own."""
_MAX_TRACE: Final = 55
"""Characters of a traceparent (W3C Trace Context §3.2)."""


def about(**facts: str | None) -> dict[str, object]:
    """For `extra`: those that are known."""
    return {_ABOUT: {name: fact for name, fact in facts.items() if fact is not None}}


def trace_of(properties: Mapping[str, object]) -> str | None:
    """The trace context among application properties, if it has the form of one: it goes into the
    log."""
    for name in TRACE_NAMES:
        value = properties.get(name)
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
        if isinstance(text, str) and len(text) <= _MAX_TRACE:
            if text.isascii() and text.replace("-", "").isalnum():
                return str(text)
    return None


class HumanFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(HUMAN)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        trace = getattr(record, _ABOUT, {}).get("trace")
        head, *rest = text.split("\n") if record.exc_info else [text.replace("\n", "\\n")]
        return "\n".join([head if trace is None else f"{head} trace:{trace}", *rest])


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, what it is about, a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _ABOUT, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(form: str = "human", *, is_verbose: bool = False) -> None:
    """To the standard error: warnings, or with `is_verbose` also what is refused, and why."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else HumanFormatter())
    level = logging.INFO if is_verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler], force=True)
