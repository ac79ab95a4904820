"""A work queue with transactional copies, in a process that a test can kill: `python -m tests.real.queue_transactions_driver`."""

from __future__ import annotations

import asyncio
import sys

from asyncgroup import ConsumerConfig
from asyncgroup.workqueue import DeadLetter, Delivery, RetryTopic, WorkQueue
from tests.work_queues import group_queue

__all__ = ["handle", "queue"]


def queue(servers: str, group_id: str, topic: str) -> WorkQueue:
    """Return the queue. Its member is static: the next process takes over at once, and ends what this one left open."""
    config = ConsumerConfig(
        isolation_level="read_committed", auto_offset_reset="earliest", group_instance_id="one"
    )
    return group_queue(
        servers,
        group_id,
        topic,
        config=config,
        transactional_copies=True,
        retry=RetryTopic(f"{topic}-{group_id}-RETRY"),  # a name of the user, so that no copy is deleted
        dead_letter=DeadLetter(20),
        nack_backoff=0.1,
    )


async def handle(delivery: Delivery) -> None:
    """Reject every third record, and have every third one delivered again from the retry topic."""
    await asyncio.sleep(0.001)
    number = int(delivery.value or b"0")
    if number % 3 == 0:
        await delivery.reject("a multiple of three")
    elif number % 3 == 1 and not delivery.record.topic.endswith("-RETRY"):
        await delivery.reconsume_later(0.2)


async def _handle_and_say_so(delivery: Delivery) -> None:
    sys.stdout.write(".")
    sys.stdout.flush()
    await handle(delivery)


async def _main(servers: str, group_id: str, topic: str) -> None:
    async with queue(servers, group_id, topic) as made:
        print("open", flush=True)
        await made.run(_handle_and_say_so)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
