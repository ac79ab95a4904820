"""The command line: `asyncgroup demo | broker | produce | consume`."""

from asyncgroup.cli.app import main

__all__ = ["main"]
