"""Three signals to `work` with handlers that hang."""

from __future__ import annotations

import signal
import textwrap
import time
from pathlib import Path

import pytest

from tests.cli.programs import broker, run, started

HANDLERS = """
    import asyncio
    import time

    async def ignores_its_cancellation(delivery):
        print("begun", flush=True)
        while True:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                print("cancelled", flush=True)

    async def never_yields(delivery):
        while True:
            print(time.monotonic(), flush=True)
            time.sleep(0.01)
"""


@pytest.fixture
def handlers(tmp_path: Path) -> Path:
    (tmp_path / "hanging_handlers.py").write_text(textwrap.dedent(HANDLERS))
    return tmp_path


@pytest.mark.full
def test_the_third_signal_ends_work(handlers: Path) -> None:
    """The first one waits for the handler, the second one cancels it, or both wait for the event loop."""
    with broker("--topic", "t:1") as servers:
        run("produce", "-b", servers, "-t", "t", stdin="a\n")
        work = ("-b", servers, "--topics", "t", "--from", "earliest", "--group")
        with started(
            "work", "hanging_handlers:ignores_its_cancellation", *work, "a", path=[handlers]
        ) as program:
            assert program.line() == "begun\n"
            program.signal(signal.SIGINT)
            program.wait_for_error("closing: handlers that run")
            program.signal(signal.SIGINT)
            assert program.line() == "cancelled\n"
            code, out, err = program.end(signal.SIGINT)
            assert (code, out, err) == (-signal.SIGINT, "", "")
        with started("work", "hanging_handlers:never_yields", *work, "b", path=[handlers]) as program:
            program.line()
            for _ in range(2):
                program.signal(signal.SIGINT)
                sent = time.monotonic()
                while float(program.line()) < sent:
                    pass
                program.line()  # Python has handled the signal when the handler goes on after it
            assert program.end(signal.SIGINT)[0] == -signal.SIGINT
