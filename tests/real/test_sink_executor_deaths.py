"""The transactional sink when executors die: Java processes that run tasks, with the transactions of these tasks open."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, Final

import pytest

from asyncgroup import Cluster, ProducerConfig
from asyncgroup.spark.sink.transactions.kafka import KafkaTransactions
from tests.real.spark_driver import TWO, Driver
from tests.real.spark_support import Kafka
from tests.real.test_spark_executors import MEMORY, available_memory, spark_home
from tests.real.test_transactional_sink import COPIES, LIMIT, PARTITIONS, Copy
from tests.real.transactional_sink_driver import HELD, TASK, arm, copy_in_transactions, parent_of

ROWS_EACH, BATCH = 10_000, 4_000
RANDOM: Final = "random"

pytestmark = pytest.mark.timeout(1800)


class Executors:
    """The executors of a driver, whose Java runs the cluster's workers, and so has started them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def pids(self) -> list[int]:
        return [
            pid for pid in descendants(self._driver.java) if "CoarseGrainedExecutorBackend" in command(pid)
        ]

    async def kill(self, executor: int) -> None:
        """Kill an executor's Java, and wait until its Python workers have ended."""
        assert executor in self.pids()
        workers = descendants(executor)
        os.kill(executor, signal.SIGKILL)
        async with asyncio.timeout(LIMIT):
            while any(command(pid) for pid in workers):
                await asyncio.sleep(0.01)

    async def kill_running_task(self, faults: Path, task: int, sink: KafkaTransactions) -> list[int]:
        """Kill the executor of a task that has written a part of its rows; return the tasks with open transactions."""
        arm(faults, f"{TASK}-{task}")
        async with asyncio.timeout(LIMIT):
            while not (faults / HELD).exists() or task not in await sink.open_slots():
                await asyncio.sleep(0.01)
        executor = int((faults / HELD).read_text())
        (faults / HELD).unlink()
        opened = sorted(await sink.open_slots())
        await self.kill(executor)
        return opened

    async def kill_any(self, rng: random.Random) -> None:
        async with asyncio.timeout(LIMIT):
            while not (pids := self.pids()):
                await asyncio.sleep(0.05)
        await self.kill(rng.choice(pids))


def descendants(pid: int) -> list[int]:
    """Return the process ids of a process's children, their children, and so on."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if parent_of(int(entry.name)) == pid:
                found.append(int(entry.name))
        except OSError:
            continue  # the process has just ended
    return found + [each for child in found for each in descendants(child)]


def command(pid: int) -> str:
    """Return a process's command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.mark.soak
@pytest.mark.parametrize("shuffled", [False, True], ids=["direct", "shuffled"])
async def test_each_row_is_committed_once_when_executors_die(
    kafka: Kafka, tmp_path: Path, shuffled: bool
) -> None:
    """Two executors run one task at a time: task 0 is one of the first of its batch, and task 3 one of the last.

    So task 3's executor has finished another task of the batch, whose transaction is committed though its executor died.
    With a shuffle before the sink, Spark may also have to repeat tasks of the stage before.
    """
    memory = available_memory()
    if memory is not None and memory < MEMORY:
        pytest.skip(f"a cluster of two executors needs {MEMORY >> 20} MiB, {memory >> 20} are available")
    rng, start = random.Random(1), time.monotonic()
    topic, target = await kafka.topic(PARTITIONS), await kafka.topic(COPIES)
    await kafka.produce(topic, dict.fromkeys(range(PARTITIONS), ROWS_EACH))
    (faults := tmp_path / "faults").mkdir()
    (home := tmp_path / "spark").mkdir()
    settings: dict[str, Any] = {
        "servers": kafka.servers,
        "config": TWO,
        "options": {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH)},
        "sink": {"topic": target, "transactional.id.prefix": target, "faults": str(faults)},
        "checkpoint": str(tmp_path / "checkpoint"),
        "shuffled": shuffled,
    }
    environ = {"SPARK_HOME": str(spark_home(home))}
    async with Copy().reading(kafka.servers, target) as copy, Cluster(kafka.servers) as cluster:
        sink = KafkaTransactions(cluster, ProducerConfig(), target)
        async with Driver(copy_in_transactions, settings, environ) as driver:
            assert await driver.line() == "started"
            executors = Executors(driver)
            for kill in (0, RANDOM, 3, RANDOM):
                if isinstance(kill, int):
                    opened = await executors.kill_running_task(faults, kill, sink)
                    assert kill in opened
                    print(f"open transactions of tasks {opened}")
                else:
                    await copy.wait_written(rng.randint(1, BATCH))
                    await executors.kill_any(rng)
                took = time.monotonic() - start
                print(f"{took:.1f} s: killed an executor ({kill}), {copy.committed.total()} rows committed")
            assert await driver.line() == "done"
        print(f"{time.monotonic() - start:.1f} s: done")
        assert not list(faults.iterdir())
        assert not await sink.open_slots()
        await copy.wait_complete(PARTITIONS * ROWS_EACH)
    expected = {b"%d-%d" % (part, at) for part in range(PARTITIONS) for at in range(ROWS_EACH)}
    assert set(copy.committed) == expected
    assert copy.committed.total() == len(expected)
    assert copy.written.total() > len(expected)  # what was killed had written something
    print(f"{copy.committed.total()} committed once, {copy.written.total()} written")
