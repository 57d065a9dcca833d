"""The server's log: a line for people or for machines, with what leads further (C5, T1)."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandembus.client import Client, OutgoingMessage
from tandembus.config import ServerConfig
from tandembus.errors import ArgumentError, EntityDisabledError
from tandembus.server.logs import FORMATS, HumanFormatter, JsonFormatter, about, configure, trace_of
from tandembus.testing import LocalBroker, LocalNamespace

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def logged(formatter: logging.Formatter, text: str, *arguments: object, **more: object) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    log = logging.getLogger("tandembus.test")
    log.addHandler(handler)
    log.propagate = False
    try:
        log.error(text, *arguments, **more)  # type: ignore[arg-type]
    finally:
        log.removeHandler(handler)
    return out.getvalue()


@pytest.mark.req("C5")
def test_a_line_of_json() -> None:
    """One object, with the facts as fields; those that are not known are not there."""
    line = logged(
        JsonFormatter(), "%s: refused", "1.2.3.4", extra=about(tracking_id="a-1", trace=None)
    )
    tree = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", tree.pop("time"))
    assert tree == {
        "level": "error",
        "logger": "tandembus.test",
        "message": "1.2.3.4: refused",
        "tracking_id": "a-1",
    }


@pytest.mark.parametrize("formatter", [JsonFormatter(), HumanFormatter()])
def test_a_client_cannot_begin_a_line(formatter: logging.Formatter) -> None:
    """What it has sent is in the text."""
    line = logged(formatter, "refused: %s", "x\n2026-01-01 CRITICAL tandem: all is lost\r\n")
    assert line.count("\n") == 1


def test_a_traceback_is_kept() -> None:
    try:
        raise ValueError("a fault")
    except ValueError:
        line = json.loads(logged(JsonFormatter(), "so it is", exc_info=True))
        lines = logged(HumanFormatter(), "so it is", exc_info=True)
    assert "ValueError: a fault" in line["exception"]
    assert lines.endswith("ValueError: a fault\n")


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ({"traceparent": TRACE}, TRACE),
        ({"Diagnostic-Id": TRACE}, TRACE),
        ({"Diagnostic-Id": TRACE.encode()}, TRACE),
        ({"traceparent": TRACE, "Diagnostic-Id": "other"}, TRACE),
        ({"traceparent": 7, "Diagnostic-Id": "it"}, "it"),
        ({"traceparent": "x\ny"}, None),
        ({"traceparent": "x" * 56}, None),
        ({"Diagnostic-Id": b"\xff"}, None),
        ({}, None),
    ],
)
def test_a_trace_context_is_what_looks_like_one(
    properties: dict[str, object], found: str | None
) -> None:
    assert trace_of(properties) == found


@pytest.mark.parametrize("form", FORMATS)
def test_it_can_be_chosen(form: str) -> None:
    """Also in the place of what somebody has set before."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        configure(form, is_verbose=True)
        (handler,) = root.handlers
        assert isinstance(handler.formatter, JsonFormatter if form == "json" else HumanFormatter)
        assert root.level == logging.INFO
    finally:
        root.handlers[:] = before
        root.setLevel(level)


# --- a running server -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as running:
        yield running


@pytest.fixture
def namespace(broker: LocalBroker) -> Iterator[LocalNamespace]:
    with broker.namespace() as fresh:
        fresh.create_queue("q")
        yield fresh


@pytest.mark.req("C5", "T1")
def test_a_refusal_leads_to_its_line(
    namespace: LocalNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """The id in the client's error is a field of the line, beside the trace of the message."""
    caplog.set_level(logging.INFO, "tandembus.server")
    namespace.create_queue("shut", Status="SendDisabled")
    message = OutgoingMessage(b"x", properties={"traceparent": TRACE})
    with Client(namespace.connection_string) as client:
        sender = client.sender("shut")
        with pytest.raises(EntityDisabledError) as caught:
            sender.send(message)
    tracking = re.search(r"TrackingId:(\S+)", str(caught.value))
    assert tracking is not None
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    (line,) = [each for each in lines if each.get("tracking_id") == tracking[1]]
    assert line["trace"] == TRACE
    assert line["peer"].startswith(("127.0.0.1:", "::1"))
    (record,) = [each for each in caplog.records if tracking[1] in each.getMessage()]
    assert HumanFormatter().format(record).endswith(f"trace:{TRACE}")


@pytest.mark.req("C5")
def test_a_trace_context_passes_through(namespace: LocalNamespace) -> None:
    """Unchanged, with the official SDK, under both names, on every road that a message can go."""
    sdk = pytest.importorskip("azure.servicebus")
    namespace.create_topic("t")
    namespace.create_subscription("t", "s", ForwardTo="q")
    marks = {"traceparent": TRACE, "Diagnostic-Id": TRACE, "tracestate": "vendor=1,other=2"}
    with sdk.ServiceBusClient.from_connection_string(namespace.connection_string) as client:
        with client.get_topic_sender("t") as sender:
            sender.send_messages(sdk.ServiceBusMessage("x", application_properties=dict(marks)))
        with client.get_queue_receiver("q", max_wait_time=10) as receiver:
            (peeked,) = receiver.peek_messages()
            (message,) = receiver.receive_messages()
            receiver.dead_letter_message(message, reason="to look at it again")
    with Client(namespace.connection_string) as client:
        (dead,) = client.browse("q/$DeadLetterQueue")
        again = dict(dead.properties)
    for shown in (peeked.application_properties, message.application_properties):
        assert {key.decode(): text.decode() for key, text in shown.items()} == marks
    assert {name: again[name] for name in marks} == marks


def test_a_form_that_is_none_is_refused(tmp_path: Path) -> None:
    """At the start, by its name."""
    with pytest.raises(ArgumentError, match="--log-format is human or json"):
        ServerConfig(tmp_path, log_format="yaml").validate()
