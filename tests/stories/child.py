"""A group member in its own process: reports events on stdout, one JSON object per line, until stdin is closed.

python -m tests.stories.child '{"bootstrap_servers": "…", "group_id": "…", "topics": […], "config": {…}}'
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from asyncgroup import ConsumerConfig, ConsumerGroup
from tests.stories.log import RecordingHandler, ReportingHooks


def report(kind: str, **facts: Any) -> None:
    """Report an event to the parent process."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


async def main(arguments: dict[str, Any]) -> None:
    settings = arguments["config"].items()
    config = ConsumerConfig(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in settings}
    )
    group = ConsumerGroup(
        arguments["bootstrap_servers"], arguments["group_id"], config, hooks=[ReportingHooks(report)]
    )
    failure: BaseException | None = None
    async with group:
        report("running")
        running = asyncio.create_task(group.run(arguments["topics"], RecordingHandler(report)))
        parent = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([running, parent], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            failure = running.exception()
        else:
            await group.aclose()
            await running
    report("stopped", failure=repr(failure) if failure else None)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
