"""The measured process: `python -m benchmarks.measured CASE SETTINGS`, settings and figures being JSON objects.

Each client has a process of its own, so that imports, threads and garbage of one never weigh on another.
"""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.clients import CASES, Settings
from benchmarks.meter import Meter

__all__ = ["main"]


def main(name: str, settings_json: str) -> None:
    """Run one case and print its figures as the last line."""
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
