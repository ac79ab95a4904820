"""The command-line tools: `asyncgroup demo | broker | produce | consume | work | dlq`, and the operator's commands."""

from __future__ import annotations

import signal
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code, also if Ctrl-C comes while the commands are loaded: see `app.main`."""
    try:
        from asyncgroup.cli.app import main as run

        return run(arguments)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
