"""What a query has consumed is removed as soon as its batch is committed.

Without this the source does it with the next batch, or at the query's next start. With it the last
batch of a query that is stopped for good is removed, too:

    spark.streams.addListener(ConsumedListener(connectionString=…, entity="orders", consumer="etl"))
"""

from __future__ import annotations

import json
import logging

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tandembus.errors import TandemError
from tandembus.spark.brokers import Broker, connect
from tandembus.spark.offsets import CONSUMER, decode
from tandembus.spark.options import parse_read

log = logging.getLogger("tandembus.spark")


class ConsumedListener(StreamingQueryListener):
    """Takes the options of the source; looks at the progress of every query, and acts on those that
    read the same entities for the same consumer."""

    def __init__(self, **options: str) -> None:
        self._options = parse_read({"mode": "consume", **options}, streams=True)
        self._broker: Broker | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is committed yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            self.committed(source.endOffset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def committed(self, text: str | None) -> None:
        """A batch that ends there is in Spark's commit log. Another source's offset is passed
        over."""
        try:
            said = json.loads(text or "{}")
        except ValueError:
            return
        if not isinstance(said, dict) or said.get(CONSUMER) != self._options.consumer:
            return
        offset = decode(said)
        if {key.partition("#")[0] for key in offset} != set(self._options.entities):
            return
        try:
            if self._broker is None:
                self._broker = connect(self._options.target, self._options.entities[0])
            self._broker.commit(self._options.consumer, offset, removes=self._options.consumes)
        except TandemError as error:  # the source does it later
            log.warning("what was consumed stays for now: %s", error)
