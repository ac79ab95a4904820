"""A query with the transactional sink, which dies where a test wants: `python -m tests.real.transactional_sink_driver`.

A file in the directory `faults` arms a fault; the process that meets it removes the file. `between-ends` holds the driver's
commit when a part of the transactions has ended; each `worker-*` kills a task's Python worker in the middle of its rows;
`task-<n>` holds the task with this number in the middle of its rows, so that a test can kill its executor.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from asyncgroup.spark.data_source import AsyncGroupDataSource
from asyncgroup.spark.sink.transactions.kafka import KafkaTransactions
from asyncgroup.spark.sink.transactions.records import SlotTransaction
from asyncgroup.spark.sink.transactions.writers import TransactionalStreamWriter
from tests.real.spark_driver import say, start_session

if TYPE_CHECKING:
    import pyarrow

__all__ = ["BETWEEN_ENDS", "HELD", "TASK", "WORKERS", "arm", "copy_in_transactions"]

BETWEEN_ENDS = "between-ends"
WORKERS = ("worker-1", "worker-2")
TASK = "task"
"""A fault with the number of a task is `task-<n>`."""
HELD = "held"
"""The file with the process id of a commit that is held, or of the executor of a task that is held."""


def copy_in_transactions(settings: dict[str, Any]) -> None:
    """Copy a topic to another one, `shuffled` by key if asked; the key is the partition and offset that a row was read from."""
    spark = start_session(**settings.get("config", {}))
    spark.dataSource.register(FaultySink)
    kafka = {"kafka.bootstrap.servers": settings["servers"]}
    reading = spark.readStream.format("asyncgroup").options(**kafka, **settings["options"]).load()
    rows = reading.selectExpr("concat(partition, '-', offset) AS key", "value")
    if settings.get("shuffled"):
        rows = rows.repartition(4, "key")  # each run of a batch has the same rows in each task
    writing = rows.writeStream.format("faulty").options(**kafka, **settings["sink"])
    query = writing.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True).start()
    say("started")
    query.awaitTermination()
    say("done")
    spark.stop()


class FaultySink(AsyncGroupDataSource):
    """The sink with faults, as format "faulty"."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        faults = Path(self.options.pop("faults"))  # the sink refuses unknown options
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, TransactionalStreamWriter)
        hold_between_ends(faults)
        return FaultyWriter(writer, faults)


class FaultyWriter(TransactionalStreamWriter):
    """A writer whose Python worker can be killed or held."""

    def __init__(self, writer: TransactionalStreamWriter, faults: Path) -> None:
        super().__init__(writer._settings, writer._rows)
        self._faults = faults

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return super().write(self._killing(iterator))

    def _killing(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if any(is_armed(self._faults, name) for name in WORKERS):
                os.kill(os.getpid(), signal.SIGKILL)
            self._hold_if_armed()
            yield batch.slice(batch.num_rows // 2)

    def _hold_if_armed(self) -> None:
        context = TaskContext.get()
        assert context is not None
        if is_armed(self._faults, f"{TASK}-{context.partitionId()}"):
            arm(self._faults, HELD, str(parent_of(os.getppid())))  # executor, daemon, this worker
            threading.Event().wait()


def hold_between_ends(faults: Path) -> None:
    """Hold the commit of this process when the first transaction has ended, if the test has armed it."""
    end, ended, lock = KafkaTransactions.end, [], asyncio.Lock()

    async def end_or_hold(self: KafkaTransactions, transaction: SlotTransaction, *, commit: bool) -> bool:
        async with lock:  # one after the other
            if ended and is_armed(faults, BETWEEN_ENDS):
                arm(faults, HELD, str(os.getpid()))
                await asyncio.Event().wait()
            ended.append(transaction)
            return await end(self, transaction, commit=commit)

    KafkaTransactions.end = end_or_hold  # type: ignore[method-assign]


def parent_of(pid: int) -> int:
    """Return the process id of a process's parent."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def arm(faults: Path, name: str, text: str = "") -> None:
    """Create the file of a fault at once with its text."""
    (faults / "new").write_text(text)
    (faults / "new").rename(faults / name)


def is_armed(faults: Path, name: str) -> bool:
    """Return whether a fault is armed, and disarm it."""
    try:
        (faults / name).unlink()
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    from tests.real import transactional_sink_driver  # not `__main__`: Spark's processes import the classes

    assert sys.argv[1] == "copy_in_transactions"
    transactional_sink_driver.copy_in_transactions(json.loads(sys.argv[2]))
