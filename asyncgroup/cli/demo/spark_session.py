"""Start Spark for the demonstration in the background, while the flights are produced, and stop it at the end."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.demo.progress import DemoFailed
from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import wait_shielded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["start_spark"]

CONFIG: Final = {
    # a short run is faster with only the first stage of Java's compiler: 24 s of CPU instead of 40
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Python workers are forked with pandas imported; importing it in each of them takes 10 s in all on two cores
    "spark.python.daemon.module": "asyncgroup.spark.preloading_daemon",
    # the default one runs a program for some files of a local disk: 100 ms for each batch and state store
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

MAX_CORES: Final = 4
"""Cores that the local Spark uses at most."""


async def start_spark(stack: AsyncExitStack) -> asyncio.Task[SparkSession]:
    """Start Spark in the background; `stack` stops it. Raises DemoFailed if Spark or Java is not installed."""
    from asyncgroup.spark import local_session, require_spark

    try:
        await asyncio.to_thread(require_spark)
    except AsyncGroupError as error:
        raise DemoFailed(
            f"{str(error).rstrip('.')}. Or run the demonstration without Spark: asyncgroup demo --no-spark"
        ) from error
    cores = min(MAX_CORES, os.cpu_count() or 1)
    starting = asyncio.create_task(
        asyncio.to_thread(local_session, "asyncgroup demo", cores=cores, config=CONFIG), name="start Spark"
    )

    async def stop() -> None:
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await asyncio.to_thread(starting.result().stop)

    stack.push_async_callback(lambda: wait_shielded(asyncio.create_task(stop(), name="stop Spark")))
    return starting
