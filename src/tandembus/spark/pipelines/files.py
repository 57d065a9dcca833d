"""Files beside Spark's own: which there are, a small text, a folder that goes. Through Hadoop, so
that it is the same on a disk, in HDFS and in an object store."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class Folder:
    """A folder by its path or URI."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        jsc: Any = spark.sparkContext._jsc
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path(path)
        self._fs = self._path.getFileSystem(jsc.hadoopConfiguration())
        self.path = path

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name)

    def names(self) -> list[str]:
        """What is directly in it; nothing if it is not there."""
        if not self._fs.exists(self._path):
            return []
        return sorted(str(each.getPath().getName()) for each in self._fs.listStatus(self._path))

    def has(self, name: str) -> bool:
        return bool(self._fs.exists(self._at(name)))

    def at(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def remove(self, name: str) -> None:
        self._fs.delete(self._at(name), True)

    def read(self, name: str) -> str | None:
        """A small text; None if it is not there."""
        if not self.has(name):
            return None
        stream = self._fs.open(self._at(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        stream = self._fs.create(self._at(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
