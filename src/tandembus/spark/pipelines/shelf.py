"""Where a stream puts what its micro-batches were reduced to, and takes their sum from.

One folder for each batch, named for ever (`checkpoints`), written whole or not at all: Spark's
`_SUCCESS` says so. When there are many, they are put together into one: first the new one, then the
old ones go, so a crash in between only leaves some to be passed over.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from tandembus.spark.pipelines.files import Folder
from tandembus.spark.pipelines.view import Reducer

MOST: Final = 64
"""Batches on a shelf before they are put together."""
_SUM: Final = "sum-"


class Shelf:
    def __init__(self, spark: SparkSession, path: str, reducer: Reducer, most: int = MOST) -> None:
        self._spark = spark
        self._folder = Folder(spark, path)
        self._reducer = reducer
        self._most = most

    def put(self, batch: str, reduced: DataFrame) -> None:
        """A batch that is there already is replaced; one that is in a sum already is left out."""
        if batch <= self._summed():
            return
        reduced.write.mode("overwrite").parquet(self._folder.at(batch))
        names = self._names()
        if len(names) > self._most:
            self._sum(names)

    def whole(self) -> DataFrame:
        """The sum of all batches; there must be one."""
        paths = [self._folder.at(name) for name in self._names()]
        return self._reducer.together(self._spark.read.parquet(*paths))

    def finished(self) -> DataFrame:
        """The same, as tables are made from it."""
        return self._reducer.finished(self.whole())

    def _sum(self, names: list[str]) -> None:
        last = max(name.removeprefix(_SUM) for name in names)
        self.whole().write.mode("overwrite").parquet(self._folder.at(_SUM + last))
        for name in self._folder.names():
            if name != _SUM + last and name.removeprefix(_SUM) <= last:
                self._folder.remove(name)

    def _whole_names(self) -> list[str]:
        return [name for name in self._folder.names() if self._folder.has(f"{name}/_SUCCESS")]

    def _summed(self) -> str:
        """The last batch that is in a sum."""
        sums = [name for name in self._whole_names() if name.startswith(_SUM)]
        return max(sums, default="").removeprefix(_SUM)

    def _names(self) -> list[str]:
        """The newest sum, and the batches behind it."""
        summed = self._summed()
        names = [name for name in self._whole_names() if not name.startswith(_SUM)]
        found = [name for name in names if name > summed]
        return [_SUM + summed, *found] if summed else found
