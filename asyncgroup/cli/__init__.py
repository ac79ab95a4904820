"""The command-line tools: `asyncgroup demo | broker | produce | consume | work | dlq`."""

from asyncgroup.cli.app import main

__all__ = ["main"]
