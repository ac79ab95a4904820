"""The command-line tools: `asyncgroup demo | broker | produce | consume`."""

from asyncgroup.cli.app import main

__all__ = ["main"]
