"""Text from the network: control characters and escape sequences are escaped in messages and logs."""

from __future__ import annotations

import logging
import pickle

import pytest
from hypothesis import given, strategies as st

from asyncgroup.cluster.connection import Address
from asyncgroup.errors import (
    AssignmentError,
    AuthenticationError,
    BrokerError,
    CommitFailedError,
    ConnectError,
    DecodeError,
    MalformedResponse,
    SessionFailed,
)
from asyncgroup.escaping import escaping_logger, printable
from asyncgroup.lifecycle import copy_error
from asyncgroup.model import TopicPartition

HOSTILE = "ev\x1b[2Jil\r\n2026-01-01 forged\x00\x9b31m\u202e\ud800"
SHOWN = "ev\\x1b[2Jil\\r\\n2026-01-01 forged\\x00\\x9b31m\\u202e\\ud800"


def test_control_characters_are_escaped_and_nothing_else() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("naïve – 日本 'quoted' \\x1b") == "naïve – 日本 'quoted' \\x1b"


def test_length_is_bounded() -> None:
    assert printable("x" * 100, 10) == "x" * 10 + "…"
    assert printable("\n" * 100, 10) == "\\n" * 5 + "…"
    assert printable("x" * 10, 10) == "x" * 10


@given(st.text(alphabet=st.characters(), max_size=50), st.integers(1, 60))
def test_any_text_is_printable_and_stays_so(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit + 1
    assert printable(printable(text)) == printable(text)
    printable(text).encode()


@pytest.mark.parametrize(
    "error",
    [
        ConnectError(HOSTILE),
        DecodeError(HOSTILE),
        MalformedResponse(HOSTILE),
        AuthenticationError(HOSTILE),
        AssignmentError(HOSTILE),
        SessionFailed(HOSTILE),
        BrokerError(3, f"topic {HOSTILE}", HOSTILE),
        CommitFailedError("g", {TopicPartition(HOSTILE, 0): BrokerError(3, "x", HOSTILE)}),
    ],
)
def test_errors_are_one_line(error: Exception) -> None:
    for one in (error, copy_error(error)):
        assert str(one).isprintable()
        assert SHOWN in str(one)


def test_an_errors_pickle_has_the_same_text() -> None:
    error = ConnectError(HOSTILE)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_messages_of_brokers_are_limited_in_length() -> None:
    assert len(str(BrokerError(3, "topic 't'", "x" * 100_000))) < 1100


def test_addresses_and_partitions() -> None:
    assert str(Address(1, HOSTILE, 9092)) == f"node 1 ({SHOWN}:9092)"
    assert len(str(Address(1, "x" * 40_000, 9092))) < 300
    assert str(TopicPartition(HOSTILE, 7)) == f"{SHOWN}-7"
    assert str(TopicPartition("orders", 7)) == "orders-7"


def test_a_loggers_arguments(caplog: pytest.LogCaptureFixture) -> None:
    log = escaping_logger("tests.escaping")
    assert escaping_logger("tests.escaping") is log
    assert len(log.filters) == 1
    with caplog.at_level(logging.INFO):
        log.info("member %s of %d: %r", HOSTILE, 7, HOSTILE)
        log.info("no arguments")
        log.info("%(name)s", {"name": HOSTILE})
    first, second, third = (record.getMessage() for record in caplog.records)
    assert first.isprintable()
    assert SHOWN in first
    assert second == "no arguments"
    assert third == SHOWN
