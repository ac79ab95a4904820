"""An embedded Pulsar in a separate process: it prints its service URL, and ends with its standard input."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.broker.file_limit import raise_file_limit

__all__ = ["serve"]


async def serve() -> None:
    """Serve until the standard input ends."""
    from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar

    raise_file_limit()
    async with EmbeddedPulsar(history_limit=0) as pulsar:
        print(pulsar.service_url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
