"""A member in a process of its own that copies records in transactions: `python -m tests.real.chaos.transforming SETTINGS` (JSON).

The output of a record is `<value>!` in the partition of the same number. SIGTERM closes the group.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

from asyncgroup import Batch, ConsumerConfig, ConsumerGroup, ConsumeTransformProduce, TransactionOutput

__all__ = ["TransformSettings"]


@dataclass(frozen=True, kw_only=True)
class TransformSettings:
    """What a member reads and writes; `config` has further settings of its consumer."""

    servers: str
    group_id: str
    source: str
    target: str
    commit_interval: float = 0.1
    config: dict[str, Any] = field(default_factory=dict)


async def consume(settings: TransformSettings) -> None:
    """Transform until SIGTERM."""

    async def transform(batch: Batch, output: TransactionOutput) -> None:
        for record in batch:
            await output.enqueue(settings.target, (record.value or b"") + b"!", partition=batch.partition)

    config = ConsumerConfig(auto_offset_reset="earliest", isolation_level="read_committed", **settings.config)
    handler = ConsumeTransformProduce(transform, commit_interval=settings.commit_interval)
    async with ConsumerGroup(settings.servers, settings.group_id, config) as group:
        closing = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, closing.set)
        run = asyncio.create_task(group.run(settings.source, handler))
        print("ready", flush=True)
        waiting = asyncio.create_task(closing.wait())
        await asyncio.wait([run, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await group.aclose()
        await run


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    given = json.loads(sys.argv[1])
    given["config"] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given["config"].items()
    }
    asyncio.run(consume(TransformSettings(**given)))
