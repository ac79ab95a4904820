"""Run administrative commands in the event loop of a test, and read what they print."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from asyncgroup.cli.advice import with_advice
from asyncgroup.cli.app import _parser, exit_code_of
from asyncgroup.errors import AsyncGroupError

__all__ = ["Commands", "Printed"]


class Printed(NamedTuple):
    """The exit code of a command and its output."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of standard output."""
        return self.out.splitlines()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The objects that `--json` printed."""
        return [json.loads(line) for line in self.lines]

    def table(self) -> list[list[str]]:
        """The cells of the table, with its headings first. Values must not contain blanks."""
        return [line.split() for line in self.lines]

    @property
    def errors(self) -> list[str]:
        """The lines of standard error."""
        return self.err.splitlines()


class Commands:
    """Runs commands on one cluster."""

    def __init__(self, servers: str, capture: pytest.CaptureFixture[str]) -> None:
        self._servers = servers
        self._capture = capture

    async def __call__(self, *arguments: str) -> Printed:
        """Run a command, and return its exit code and output. A usage error raises SystemExit."""
        self._capture.readouterr()
        options = _parser().parse_args([*arguments, "-b", self._servers])
        try:
            code = await options.run(options)
        except AsyncGroupError as error:  # as `main` does
            out, err = self._capture.readouterr()
            return Printed(exit_code_of(error, options), out, f"{err}{with_advice(error)}\n")
        return Printed(code, *self._capture.readouterr())

    async def ok(self, *arguments: str) -> Printed:
        """Run a command that must exit with 0 and print no error."""
        printed = await self(*arguments)
        assert (printed.code, printed.err) == (0, ""), printed
        return printed

    async def json(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a successful command with `--json`, and return its rows."""
        return (await self.ok(*arguments, "--json")).rows
