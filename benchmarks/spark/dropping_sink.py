"""The format `dropped`: a sink in Python that receives the rows and drops them. No sink in Python can be faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow
    from pyspark.sql import SparkSession

__all__ = ["DROPPED", "register_dropping_sink"]

DROPPED: Final = "dropped"


def register_dropping_sink(spark: SparkSession) -> None:
    """Register the format; a query writes the number of its rows to the file that the option `count` names."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    # classes of a function: Spark's Python processes get them as values, and need not find this module
    class Count(WriterCommitMessage):
        def __init__(self, rows: int) -> None:
            self.rows = rows

    class DroppingWriter(DataSourceArrowWriter):
        def __init__(self, count: str) -> None:
            self.count = count

        def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
            return Count(sum(batch.num_rows for batch in iterator))

        def commit(self, messages: list[Any]) -> None:
            Path(self.count).write_text(str(sum(message.rows for message in messages)))

    class DroppingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return DROPPED

        def writer(self, schema: Any, overwrite: bool) -> DroppingWriter:  # noqa: ARG002
            return DroppingWriter(self.options["count"])

    spark.dataSource.register(DroppingSource)
