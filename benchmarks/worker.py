"""A measured process: `python -m benchmarks.worker MODULE:FUNCTION SETTINGS`; settings and figures are JSON objects.

Each client runs in a separate process, so that imports, threads and garbage of one do not slow another.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
from typing import Any

__all__ = ["main"]


def main(function: str, settings_json: str) -> None:
    """Call the function with the settings and print its figures in the last line."""
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    settings: dict[str, Any] = json.loads(settings_json)
    figures = asyncio.run(call(settings)) if inspect.iscoroutinefunction(call) else call(settings)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
