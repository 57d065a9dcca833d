"""A name that Spark finds by itself: `pyspark_…` with a `DefaultSource`. The code is
`tandembus.spark`."""

from tandembus.spark.source import ServiceBusSource as DefaultSource

__all__ = ["DefaultSource"]
