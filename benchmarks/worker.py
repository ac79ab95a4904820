"""A measured process: `python -m benchmarks.worker MODULE:FUNCTION SETTINGS`; settings and figures are JSON objects.

Each client runs in a separate process, so that imports, threads and garbage of one do not slow another. A third argument,
`precise-timers`, runs it on an event loop whose timers are not rounded up to whole milliseconds, as epoll rounds them.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import selectors
import sys
from typing import Any

__all__ = ["main"]


def main(function: str, settings_json: str, timers: str = "") -> None:
    """Call the function with the settings and print its figures in the last line."""
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    settings: dict[str, Any] = json.loads(settings_json)
    if inspect.iscoroutinefunction(call):
        with asyncio.Runner(loop_factory=_precise_loop if timers == "precise-timers" else None) as runner:
            figures = runner.run(call(settings))
    else:
        figures = call(settings)
    print(json.dumps(figures), flush=True)


def _precise_loop() -> asyncio.AbstractEventLoop:
    """Return a loop on select(), whose timeouts have microseconds; for processes with few files."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    main(*sys.argv[1:])
