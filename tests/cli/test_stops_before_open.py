"""A signal ends a command that is still connecting: the broker accepts connections and never answers."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.cli.programs import LIMIT, run, started

CONSUME = ("consume", "-t", "t")
GROUP = (*CONSUME, "--group", "g")


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        pytest.param(CONSUME, signal.SIGINT, id="consume"),
        pytest.param(GROUP, signal.SIGTERM, id="group"),
        pytest.param(CONSUME, signal.SIGTERM, id="consume, SIGTERM", marks=pytest.mark.full),
        pytest.param(GROUP, signal.SIGINT, id="group, Ctrl-C", marks=pytest.mark.full),
    ],
)
def test_a_signal_ends_the_attempt_to_connect(arguments: tuple[str, ...], number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT)
        port = silent.getsockname()[1]
        with started(*arguments, "-b", f"127.0.0.1:{port}") as program:
            connection, _ = silent.accept()
            with connection:
                assert program.end(number) == (128 + number, "", "")


@pytest.mark.parametrize("arguments", [CONSUME, GROUP], ids=["alone", "group"])
@pytest.mark.full
def test_a_timeout_does_not_hide_that_no_broker_answers(arguments: tuple[str, ...]) -> None:
    """--timeout is about records: without a connection there is an error, and not an empty topic."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        ended = run(*arguments, "-b", f"127.0.0.1:{port}", "--timeout", "0.5")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "no broker answered" in ended.stderr
