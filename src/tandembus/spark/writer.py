"""Writing rows as messages, from a batch or a stream.

Each task sends its rows with ids that are the same when it runs again: the id of the row, or
`prefix/batch/partition/row`. A queue or topic with duplicate detection then takes each once,
whatever is tried again. What cannot be sent goes to quarantine with the reason, when the task is
done: a task that runs again writes the same file again.

The rule: `abort` undoes nothing, because `commit` may have been heard of.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tandembus.client import Client, Sender
from tandembus.client.messages import EncodedMessage
from tandembus.errors import (
    ArgumentError,
    ConnectionLostError,
    MessageSizeExceededError,
    NotAllowedError,
    OperationTimeoutError,
    QuotaExceededError,
    ServerBusyError,
    TandemError,
)
from tandembus.spark.brokers import given_up
from tandembus.spark.options import WriteOptions
from tandembus.spark.quarantine import Quarantine
from tandembus.spark.rows import BadRow, messages

_AGAIN: Final = (ConnectionLostError, ServerBusyError, OperationTimeoutError, QuotaExceededError)
"""Not the row's fault: the same row may be taken later."""
_OF_THE_ROW: Final = (ArgumentError, MessageSizeExceededError, NotAllowedError)
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task has done."""

    sent: int
    quarantined: int


class ServiceBusWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # Made once, in the driver: every try of every task of this job has the same.
        self._job = options.prefix or uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write(self._options, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All is sent."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was sent is sent; run again, it is known by its ids."""


class ServiceBusStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return _write(self._options, f"{self._options.prefix or query}/{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All is sent."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """As above."""


def _write(options: WriteOptions, job: str, batches: Iterator[Any]) -> Written:
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    task = f"{job}/{partition}"
    quarantine = Quarantine(options.quarantine, options.entity, task)
    sent = first = 0
    with Sending(options) as sending:
        for batch in batches:
            found = list(messages(batch, f"{task}/", first))
            bad = [each for each in found if isinstance(each, BadRow)]
            good = [(row, it) for row, it in enumerate(found) if not isinstance(it, BadRow)]
            bad += sending.send(good)
            sent += len(found) - len(bad)
            quarantine.add(batch, sorted(bad, key=lambda each: each.row), first)
            first += batch.num_rows
    quarantine.close()
    return Written(sent, quarantine.count)


class Sending:
    """A sender that comes back, and tells the rows that are refused from those to try again."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._client = Client(options.target.connection_string, ca_file=options.target.ca_file)
        self._sender: Sender | None = None

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(TandemError):  # every outcome is known already
            self._client.close()

    def send(self, rows: list[tuple[int, EncodedMessage]]) -> list[BadRow]:
        """All of them; those that the broker refuses come back. Raises what is not a row's
        fault."""
        bad: list[BadRow] = []
        until = time.monotonic() + self._options.target.retry_ms / 1000
        pause_s = 0.05
        while rows:
            failures, error = self._try(rows)
            again: list[tuple[int, EncodedMessage]] = []
            alone: list[tuple[int, EncodedMessage]] = []
            by_error: dict[int, int] = {}
            for _, why in failures:
                by_error[id(why)] = by_error.get(id(why), 0) + 1
            for at, why in failures:
                if isinstance(why, _AGAIN):
                    again.append(rows[at])
                    error = why
                elif not isinstance(why, _OF_THE_ROW):
                    raise why
                elif by_error[id(why)] == 1:
                    bad.append(BadRow(rows[at][0], why))
                else:
                    alone.append(rows[at])  # it was refused with its batch, perhaps for another
            for row in alone:
                failures, error_alone = self._try([row])
                for _, why in failures:
                    if isinstance(why, _OF_THE_ROW):
                        bad.append(BadRow(row[0], why))
                    else:
                        again.append(row)
                        error = why
                if error_alone is not None and not failures:
                    again.append(row)
                    error = error_alone
            if again and time.monotonic() >= until:
                assert error is not None
                error.add_note(given_up(self._options.target))
                raise error
            if len(again) < len(rows):
                until = time.monotonic() + self._options.target.retry_ms / 1000
                pause_s = 0.05
            if again:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            rows = again
        return bad

    def _try(
        self, rows: list[tuple[int, EncodedMessage]]
    ) -> tuple[list[tuple[int, TandemError]], TandemError | None]:
        """(place, why) of what was not accepted."""
        try:
            if self._sender is None:
                self._sender = self._client.sender(
                    self._options.entity, max_in_flight=self._options.max_in_flight
                )
            report = self._sender.send_all(message for _, message in rows)
        except _AGAIN as error:
            self._sender = None
            return [(at, error) for at in range(len(rows))], error
        failures = report.failures
        if not report.is_complete:
            self._sender = None
            last = failures[-1] if failures else (-1, ConnectionLostError("The link went."))
            failures += [(at, last[1]) for at in range(last[0] + 1, len(rows))]
        return failures, None
