"""`audit`: proves from the journal that nothing was lost, doubled or left out, or says what (D7).

What must hold, for every stretch of the journal and from its last `began` on:

- a message arrives once, is there, and ends at most once; nothing happens to it before or after;
- each delivery is followed by one return, or by the end, before the next;
- the numbers of an entity have no gap, from what `began` or its creation say to the last;
- what was dead-lettered is in the dead-letter queue, what was forwarded is where it was forwarded
  to, what a topic took went to a subscription or to none; each as often as it left, and no oftener;
- what a syphon has completed in a backlog queue arrived once at its destination, in the primary;
- no row stands twice, and the journal itself has no hole.

With `standing`, which is what the broker's own index says of a place (`journal.standing`), also:
what is there by the journal is there for the broker, and nothing else.

The log is the truth and the journal has all of it, so this is exact through any crash. An offender
is a message; several faults of one are one row.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tandembus.changes import TRANSFER_BIT
from tandembus.journal.schema import ARRIVALS, ENDS, RETURNS

FAULTS: Final = {
    "lost": "it came, did not end, and the broker does not have it",
    "gap": "a number that no message ever had",
    "doubled": "it came twice under one number",
    "ended_twice": "it ended more than once",
    "orphan": "something happened to a message that never came",
    "after_end": "something happened to it after its end",
    "before_arrival": "something happened to it before it came",
    "lock": "its deliveries and returns do not fit",
    "not_buried": "dead-lettered, and not in the dead-letter queue",
    "buried_from_nowhere": "in the dead-letter queue, and never dead-lettered",
    "not_transferred": "forwarded, and nowhere arrived",
    "transferred_from_nowhere": "arrived as forwarded, and nobody forwarded it",
    "not_copied": "published, and no subscription has it though one was to",
    "copied_from_nowhere": "a subscription has it, and its topic never published it",
    "not_brought_home": "a syphon completed it, and its destination never had it",
    "brought_home_twice": "it passed through a backlog queue and arrived twice",
    "number_reused": "it came under a number that was given out before",
    "ghost": "the broker has it, and the journal says that it ended or never came",
    "doubled_row": "the journal has the event twice",
    "journal_gap": "a part of the log is not in the journal: nothing is proven about it",
}
"""The most telling first."""

OFFENDERS: Final = (
    "namespace string, entity string, entity_id bigint, sequence_number bigint, "
    "until_sequence_number bigint, fault string, also string, place bigint, detail string"
)

_RUN: Final = ("namespace", "stretch")
_STAYS: Final = (
    "delivered", "renewed", *RETURNS, "deferred", "reactivated", "level_changed", "no_subscription",
)  # fmt: skip
_FREE_ENDS: Final = ("expired", "forwarded", "published", "cancelled")
"""Ends of a message that nobody holds."""
_MOVES: Final = (
    "forwarded", "transferred", "published", "copied", "no_subscription", "duplicate_dropped",
)  # fmt: skip
_BACKLOG: Final = "/x-servicebus-transfer/"
_PARTITION_SHIFT: Final = 48
_MOST_NUMBERS: Final = 10_000
"""Of one gap, that are listed one by one."""


def audit(events: DataFrame, standing: DataFrame | None = None) -> DataFrame:
    """The offenders; an empty table is the proof. Both frames have the columns of the journal."""
    entities = _entities(events)
    told = _since_began(events, entities)
    checked = told if standing is None else _beside(told, standing)
    found = [
        _lives(checked),
        _deaths(told),
        _moves(told),
        _gaps(told),
        _doubled_rows(told),
        _holes(events),
    ]
    if any(_BACKLOG in (row["entity"] or "") for row in entities.to_pylist()):
        found.append(_syphoned(told))
    names = events.sparkSession.createDataFrame(entities.drop_columns("began"))
    return _by_message(reduce(DataFrame.unionByName, found), names)


def summary(events: DataFrame) -> DataFrame:
    """For each entity what the audit has looked at: arrived, ended by kind, still there."""
    told = _since_began(events, _entities(events))
    ends = [_count(F.col("kind") == kind).alias(kind) for kind in ENDS]
    is_arrival = F.col("kind").isin(*ARRIVALS)
    return (
        told.where("entity_id IS NOT NULL")
        .groupBy("namespace", "entity_id")
        .agg(
            F.max("entity").alias("entity"),
            _count(is_arrival).alias("arrived"),
            *ends,
            F.sum("delta").alias("there"),
            F.max(F.when(is_arrival, F.col("sequence_number"))).alias("last_sequence_number"),
        )
        .orderBy("namespace", "entity")
    )


def _entities(events: DataFrame) -> pa.Table:
    """The entities of each stretch, and where each last `began`; looked up once, and small."""
    began = F.max(F.when(F.col("kind") == "began", F.col("place")))
    found = events.groupBy(*_RUN, "entity_id").agg(
        F.max("entity").alias("entity"), began.alias("began")
    )
    return found.toArrow()


def _since_began(events: DataFrame, entities: pa.Table) -> DataFrame:
    """Each stretch from its last `began` on: what comes before was told again there."""
    marks = [
        row for row in entities.to_pylist() if row["entity_id"] is None and row["began"] is not None
    ]
    if not marks:
        return events
    before = [
        (F.col("namespace") == mark["namespace"])
        & (F.col("stretch") == mark["stretch"])
        & (F.col("place") < mark["began"])
        for mark in marks
    ]
    return events.where(~reduce(or_, before))


def _beside(told: DataFrame, standing: DataFrame) -> DataFrame:
    """With the broker's word as rows of its own: `standing` at the place of its index, for the last
    stretch. An event before that place is marked, so that both can be counted."""
    places = standing.where("kind = 'began' AND entity_id IS NULL").select("namespace", "place")
    at = {row.namespace: row.place for row in places.collect()}
    last = told.where(F.col("namespace").isin(*at)).groupBy("namespace").agg(F.max("stretch"))
    stretches: dict[str, int] = dict(last.collect())
    at = {name: place for name, place in at.items() if name in stretches}
    if not at:
        return told
    kept = (
        standing.where(F.col("kind") == "carried_over")
        .where(F.col("namespace").isin(*at))
        .withColumn("kind", F.lit("standing"))
        .withColumn("delta", F.lit(0).cast("tinyint"))
        .withColumn("stretch", _chosen(stretches).cast("int"))
    )
    is_before = (F.col("stretch") == _chosen(stretches)) & (F.col("place") <= _chosen(at))
    return told.unionByName(kept).withColumn("is_before", is_before)


def _chosen(values: dict[str, int]) -> Column:
    """By namespace."""
    pairs = (F.lit(part) for pair in values.items() for part in pair)
    return F.create_map(*pairs)[F.col("namespace")]


# --- a message's life -----------------------------------------------------------------------------


def _lives(told: DataFrame) -> DataFrame:
    """Faults that the events of one message show. They are counted, never gathered, and no text is
    carried along: a grouping of numbers alone needs no sorting."""
    if "is_before" not in told.columns:
        told = told.withColumn("is_before", F.lit(False))
    columns = (*_RUN, "entity_id", "kind", "place", "is_before")
    kind, role, place, before = (F.col(name) for name in ("kind", "role", "place", "is_before"))
    has_life = kind.isin(*ARRIVALS, *ENDS, *_STAYS, "standing", "activated")
    steps = told.where(has_life).select(
        *columns,
        "sequence_number",
        F.when(kind == "activated", 1).otherwise(F.col("delta")).cast("tinyint").alias("role"),
    )
    former = told.where(kind == "activated").select(
        *columns,
        F.col("former_sequence_number").alias("sequence_number"),
        F.lit(-1).cast("tinyint").alias("role"),
    )
    comes, goes, is_told = role == 1, role == -1, kind != "standing"
    held_end = F.when(kind == "completed", 1).when(kind.isin(*_FREE_ENDS), 0)
    lives = (
        steps.unionByName(former)
        .groupBy(*_RUN, "entity_id", "sequence_number")
        .agg(
            _count(comes).alias("arrivals"),
            _count(goes).alias("ends"),
            _count(kind == "carried_over").alias("carried"),
            _count(kind == "delivered").alias("deliveries"),
            _count(kind.isin(*RETURNS, "deferred")).alias("returns"),
            F.max(F.when(goes, held_end)).alias("held_at_end"),
            F.min(F.when(comes, place)).alias("arrived"),
            F.min(F.when(~comes & is_told, place)).alias("first_after"),
            F.max(F.when(goes, place)).alias("ended"),
            F.max(F.when(~goes & is_told, place)).alias("last_before"),
            _count(~is_told).alias("standing"),
            F.sum(F.when(before, role).otherwise(0)).alias("there"),
            F.min("place").alias("place"),
        )
    )
    held = F.col("deliveries") - F.col("returns")
    is_locked_right = F.when(F.col("carried") > 0, True).otherwise(
        F.coalesce(held == F.col("held_at_end"), held.isin(0, 1))
    )
    has_come = F.col("arrivals") > 0
    has_events = has_come | F.col("first_after").isNotNull()
    checks = {
        "lost": (F.col("there") > 0) & (F.col("standing") == 0),
        "doubled": F.col("arrivals") > 1,
        "ended_twice": F.col("ends") > 1,
        "orphan": has_events & ~has_come,
        "after_end": F.col("last_before") > F.col("ended"),
        "before_arrival": F.col("first_after") < F.col("arrived"),
        "lock": has_events & ~is_locked_right,
        "ghost": (F.col("there") <= 0) & (F.col("standing") > 0),
    }
    faults = F.array_compact(F.array(*(F.when(is_bad, F.lit(f)) for f, is_bad in checks.items())))
    counts = (
        F.concat(F.lit(f"{name}="), F.col(name).cast("string"))
        for name in ("arrivals", "ends", "deliveries", "returns")
    )
    return (
        lives.withColumn("fault", F.explode(faults))
        .withColumn("detail", F.concat_ws(" ", *counts))
        .transform(_shaped)
    )


# --- from one entity to another -------------------------------------------------------------------


def _deaths(told: DataFrame) -> DataFrame:
    """Messages keep their number in a dead-letter queue."""
    is_buried = F.col("kind") == "buried"
    owner = F.when(is_buried, _owner()).otherwise(F.col("entity_id"))
    balance = F.sum(F.when(is_buried, 1).otherwise(-1))
    fault = F.when(F.col("balance") < 0, "not_buried").otherwise("buried_from_nowhere")
    return (
        told.where("kind IN ('buried', 'dead_lettered')")
        .withColumn("entity_id", owner)
        .groupBy(*_RUN, "entity_id", "sequence_number")
        .agg(balance.alias("balance"), F.min("place").alias("place"))
        .where("balance <> 0")
        .withColumn("fault", fault)
        .transform(_shaped)
    )


def _owner() -> Column:
    """The entity of a dead-letter queue, which has the number after it; of a transfer dead-letter
    queue, which has one bit more."""
    entity = F.col("entity_id")
    is_transfer = entity >= TRANSFER_BIT
    return F.when(is_transfer, entity - TRANSFER_BIT).otherwise(entity - 1)


def _moves(told: DataFrame) -> DataFrame:
    """Copies share their body: as many arrive as were sent on. A duplicate that its target dropped
    has arrived."""
    kind = F.col("kind")
    sums = (
        told.where(kind.isin(*_MOVES) & F.col("body").isNotNull())
        .groupBy(*_RUN, "body")
        .agg(
            *(_count(kind == name).alias(name) for name in _MOVES),
            *_latest("left", kind.isin("forwarded", "published")),
            *_latest("came", kind.isin("transferred", "copied", "duplicate_dropped")),
            F.min("place").alias("place"),
        )
    )
    sent, came = F.col("forwarded"), F.col("transferred") + F.col("duplicate_dropped")
    told_some = F.col("copied") + F.col("no_subscription") > 0
    fault = (
        F.when(sent > came, "not_transferred")
        .when(sent < came, "transferred_from_nowhere")
        .when((F.col("published") > 0) & ~told_some, "not_copied")
        .when((F.col("published") == 0) & (F.col("copied") > 0), "copied_from_nowhere")
    )
    is_missing = F.col("fault").isin("not_transferred", "not_copied")

    def place_of(name: str) -> Column:
        ways = [F.col(f"left_{name}"), F.col(f"came_{name}")]
        return F.when(is_missing, F.coalesce(*ways)).otherwise(F.coalesce(*reversed(ways)))

    return (
        sums.withColumn("fault", fault)
        .where("fault IS NOT NULL")
        .withColumns({name: place_of(name) for name in ("entity_id", "sequence_number")})
        .withColumn("detail", F.concat(F.lit("body "), F.col("body").cast("string")))
        .transform(_shaped)
    )


def _latest(name: str, condition: Column) -> list[Column]:
    """Entity and number of the last event of which this holds."""
    place = F.when(condition, F.col("place"))
    return [
        F.max_by(column, place).alias(f"{name}_{column}")
        for column in ("entity_id", "sequence_number")
    ]


# --- numbers --------------------------------------------------------------------------------------


def _gaps(told: DataFrame) -> DataFrame:
    """Numbers that are missing between what was given out before and the last. Sixty-four of them
    are the bits of one number, so that few rows have to be put in order."""
    keys = [*_RUN, "entity_id", "partition"]
    number = F.col("sequence_number")
    parts = told.withColumn("partition", F.shiftright(number, _PARTITION_SHIFT))
    anchors = (
        parts.where("kind IN ('began', 'entity_created') AND sequence_number IS NOT NULL")
        .groupBy(*keys)
        .agg(F.max(number).alias("anchor"))
    )
    # A partition that nothing is said of begins with 1.
    anchor = F.coalesce("anchor", F.expr(f"shiftleft(partition, {_PARTITION_SHIFT})"))
    numbered = [kind for kind in ARRIVALS if kind not in ("buried", "carried_over")]
    bit = F.expr("shiftleft(1L, CAST(sequence_number & 63 AS INT))")
    words = (
        parts.where(F.col("kind").isin(*numbered, "activated"))
        .groupBy(*keys, F.shiftright(number, 6).alias("word"))
        .agg(
            F.bit_or(bit).alias("bits"),
            F.min(number).alias("first"),
            F.max(number).alias("last"),
            F.min("place").alias("place"),
        )
        .join(F.broadcast(anchors), keys, "left")
        .withColumn("anchor", anchor)
    )
    before = F.lag("last").over(Window.partitionBy(*keys).orderBy("word"))
    begin = F.greatest(F.coalesce(before, F.col("anchor")), F.col("anchor")) + 1
    is_long = F.expr(f"first - begin > {_MOST_NUMBERS}")
    inside = F.expr(
        "filter(sequence(first, last), n -> (shiftright(bits, CAST(n & 63 AS INT)) & 1L) = 0L)"
    )
    between = (
        F.when(F.expr("first <= begin"), F.expr("CAST(array() AS ARRAY<BIGINT>)"))
        .when(is_long, F.array("begin"))
        .otherwise(F.expr("sequence(begin, first - 1)"))
    )
    until = F.when(is_long & F.expr("sequence_number = begin"), F.col("first") - 1)
    rows = words.withColumn("begin", begin)
    missing = (
        rows.where("first > begin OR bit_count(bits) <> last - first + 1")
        .withColumn("sequence_number", F.explode(F.concat(inside, between)))
        .where("sequence_number > anchor")
        .withColumn("until_sequence_number", until)
        .withColumn("fault", F.lit("gap"))
    )
    reused = (
        rows.where("first <= anchor")
        .withColumn("sequence_number", F.col("first"))
        .withColumn("fault", F.lit("number_reused"))
    )
    return missing.transform(_shaped).unionByName(reused.transform(_shaped))


# --- from one namespace to another ----------------------------------------------------------------


def _syphoned(told: DataFrame) -> DataFrame:
    """What a syphon completed in `PRIMARY/x-servicebus-transfer/N` is in PRIMARY, once; if that
    namespace is in the journal."""
    message = [*_RUN, "entity_id", "sequence_number"]
    in_backlog = F.col("entity").contains(_BACKLOG)
    backlog = told.where(in_backlog).where("entity_kind = 'queue'")
    keys = ["primary", "path", "message_id"]
    done = backlog.where("kind = 'completed'").select(*message).distinct()
    known = told.select(F.lower("namespace").alias("primary")).distinct()
    ended = (
        backlog.where("destination IS NOT NULL AND message_id IS NOT NULL")
        .select(
            *message,
            "place",
            "message_id",
            F.lower("destination").alias("path"),
            F.lower(F.split("entity", _BACKLOG)[0]).alias("primary"),
        )
        .join(done, message)
        .join(F.broadcast(known), "primary", "left_semi")
    )
    home = told.where(F.col("kind").isin("accepted", "scheduled") & ~in_backlog).select(
        F.lower("namespace").alias("primary"),
        F.lower("entity").alias("path"),
        "message_id",
        F.struct("place", "entity_id", "sequence_number", *_RUN).alias("home"),
    )
    arrived = (
        ended.select(*keys)
        .distinct()
        .join(home, keys, "left")
        .groupBy(*keys)
        .agg(F.count("home").alias("times"), F.max("home").alias("home"))
        .where("times <> 1")
    )
    detail = F.concat_ws(" ", F.lit("message"), "message_id", F.lit("to"), "path")
    wrong = ended.join(arrived, keys).withColumn("detail", detail)
    missing = wrong.where("times = 0").withColumn("fault", F.lit("not_brought_home"))
    twice = (
        wrong.where("times > 1")
        .select("home.*", "detail")
        .distinct()
        .withColumn("fault", F.lit("brought_home_twice"))
    )
    return missing.transform(_shaped).unionByName(twice.transform(_shaped))


# --- the journal itself ---------------------------------------------------------------------------


def _doubled_rows(told: DataFrame) -> DataFrame:
    """The events of a record are numbered: there must be as many, with the sum that they must have.
    Only a record of which that is not true is looked at row by row."""
    suspects = (
        told.groupBy(*_RUN, "place")
        .agg(
            F.count("*").alias("count"),
            F.sum("row").alias("sum"),
            F.max("row").alias("last"),
            F.min("row").alias("first"),
        )
        .where("count > last - first + 1 OR sum * 2 <> (first + last) * (last - first + 1)")
        .select(*_RUN, "place")
    )
    return (
        told.join(F.broadcast(suspects), [*_RUN, "place"], "left_semi")
        .groupBy(*_RUN, "place", "row", "entity_id", "sequence_number")
        .agg(F.count("*").alias("count"))
        .where("count > 1")
        .withColumn("detail", F.concat(F.col("count").cast("string"), F.lit(" times")))
        .withColumn("fault", F.lit("doubled_row"))
        .transform(_shaped)
    )


def _holes(events: DataFrame) -> DataFrame:
    return (
        events.where("kind IN ('missed', 'lost')")
        .withColumn("detail", F.concat_ws(" ", "kind", "detail"))
        .withColumn("fault", F.lit("journal_gap"))
        .transform(_shaped)
    )


# --- offenders ------------------------------------------------------------------------------------


def _shaped(frame: DataFrame) -> DataFrame:
    """The columns of a finding; what it does not say is null."""
    for name, kind in (("detail", "string"), ("until_sequence_number", "bigint")):
        if name not in frame.columns:
            frame = frame.withColumn(name, F.lit(None).cast(kind))
    return frame.select(
        *_RUN, "entity_id", "sequence_number", "until_sequence_number", "fault", "place", "detail"
    )


def _by_message(found: DataFrame, names: DataFrame) -> DataFrame:
    """One row for each message, with its most telling fault. A dead letter is the message that it
    was."""
    ranks = (F.lit(part) for pair in zip(FAULTS, range(len(FAULTS)), strict=True) for part in pair)
    known = F.broadcast(names.where("entity_id IS NOT NULL"))
    named = found.join(known, [*_RUN, "entity_id"], "left").withColumn(
        "rank", F.create_map(*ranks)[F.col("fault")]
    )
    is_dead = F.col("entity").endswith("/$DeadLetterQueue")
    owner = F.when(is_dead, _owner()).otherwise(F.col("entity_id"))
    # What is about no message stays apart.
    apart = F.when(F.col("sequence_number").isNull(), F.col("place"))
    said = F.struct("entity", "entity_id", "until_sequence_number", "fault", "detail")
    others = F.array_remove(F.array_sort("faults"), F.col("best.fault"))
    return (
        named.groupBy(*_RUN, owner.alias("owner"), "sequence_number", apart.alias("apart"))
        .agg(
            F.min_by(said, "rank").alias("best"),
            F.collect_set("fault").alias("faults"),
            F.min("place").alias("place"),
        )
        .select(
            "namespace",
            "best.entity",
            "best.entity_id",
            "sequence_number",
            "best.until_sequence_number",
            "best.fault",
            F.nullif(F.concat_ws(",", others), F.lit("")).alias("also"),
            "place",
            "best.detail",
        )
        .orderBy("namespace", "place")
    )


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))
