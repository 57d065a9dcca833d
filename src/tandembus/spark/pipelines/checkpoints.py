"""What a checkpoint belongs to, so that a run is resumed by the same pipeline and by no other (D8).

Spark keeps in a checkpoint how far a stream has come. Beside it lies `tandem.json`: the name and
the version of the pipeline, what it reads and where it writes, and an id that names its batches for
ever. A batch is written under `<id>-<number>`; written again after a crash, it replaces itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from pyspark.sql import SparkSession

from tandembus.errors import ArgumentError
from tandembus.spark.pipelines.files import Folder

STAMP: Final = "tandem.json"
VERSION: Final = 1
"""Raised when a pipeline's batches can no longer be read by the next release."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: str
    id: str
    is_resumed: bool

    def batch(self, number: int) -> str:
        """The name of a batch, for ever."""
        return f"{self.id}-{number:08d}"


def opened(
    spark: SparkSession, path: str, pipeline: str, facts: Mapping[str, object]
) -> Checkpoint:
    """A new checkpoint, or the one that is there; it must be of this pipeline, with these facts."""
    folder = Folder(spark, path)
    wanted = {"pipeline": pipeline, "version": VERSION, **facts}
    text = folder.read(STAMP)
    if text is None:
        if folder.names():
            raise ArgumentError(f"{path} is no checkpoint of a pipeline, and not empty")
        made = uuid4().hex[:8]
        folder.write(STAMP, json.dumps({**wanted, "id": made}, indent=2))
        return Checkpoint(path, made, is_resumed=False)
    found = json.loads(text)
    for key, value in wanted.items():
        if found.get(key) != value:
            raise ArgumentError(
                f"the checkpoint {path} is of another run: its {key} is {found.get(key)!r}, "
                f"not {value!r}. Give another --checkpoint."
            )
    return Checkpoint(path, str(found["id"]), is_resumed=True)
