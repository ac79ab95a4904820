"""The measured process of `benchmarks.consume`: `python -m benchmarks.consume_process CASE SETTINGS`.

Settings and figures are JSON objects. Each client runs in a separate process, so that imports, threads and garbage of
one do not slow another.
"""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.clients import CASES, Settings
from benchmarks.meter import Meter

__all__ = ["main"]


def main(name: str, settings_json: str) -> None:
    """Run one case and print its figures in the last line."""
    settings = Settings(**json.loads(settings_json))
    case = CASES[name]
    function, is_async = case.load(), case.is_async
    meter = Meter(settings.records, settings.limit)
    meter.begin()
    if is_async:
        asyncio.run(function(settings, meter))
    else:
        function(settings, meter)
    print(json.dumps(meter.figures()))


if __name__ == "__main__":
    main(*sys.argv[1:])
