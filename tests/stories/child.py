"""A member of a group in a process of its own: tells on stdout, one JSON object a line, until stdin ends.

python -m tests.stories.child '{"bootstrap_servers": "…", "group_id": "…", "topics": […], "config": {…}}'
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from asyncgroup import ConsumerConfig, ConsumerGroup
from tests.stories.log import RecordingHandler, ReportingHooks


def tell(kind: str, **facts: Any) -> None:
    """Say one thing to the parent."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


async def main(order: dict[str, Any]) -> None:
    config = ConsumerConfig(**order["config"])
    group = ConsumerGroup(order["bootstrap_servers"], order["group_id"], config, hooks=[ReportingHooks(tell)])
    failure: BaseException | None = None
    async with group:
        tell("running")
        running = asyncio.create_task(group.run(order["topics"], RecordingHandler(tell)))
        parent = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([running, parent], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            failure = running.exception()
        else:
            await group.aclose()
            await running
    tell("stopped", failure=repr(failure) if failure else None)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
