"""Copies: what survives each hop, what is rewritten, and headers of other programs that look like ours."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given, strategies as st

from asyncgroup.delivery_headers import DELIVER_AT, ORDERING_KEY
from asyncgroup.model import Header, Record
from asyncgroup.workqueue.copies import (
    DELAY_TIME,
    DLQ_DELIVERY_COUNT,
    DLQ_GROUP,
    DLQ_MESSAGE,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_TOPIC,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_LEGACY,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
    OutgoingCopy,
    RecordOrigin,
    dead_letter_copy,
    deliver_at,
    earlier_attempts,
    is_of_other_group,
    origin,
    retry_copy,
    user_headers,
)

NOW = 1_700_000_000_000
RETRY, DLQ, GROUP = "orders-billing-RETRY", "orders-billing-DLQ", "billing"
KIP_1191 = [DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_GROUP, DLQ_DELIVERY_COUNT, DLQ_MESSAGE]
ORIGIN = [REAL_TOPIC, ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID_LEGACY, REAL_SUBSCRIPTION]
HOP = [RECONSUMETIMES, DELAY_TIME, DELIVER_AT]
OURS = [*KIP_1191, *ORIGIN, *HOP]

VALUES = st.none() | st.binary(max_size=8) | st.integers().map(lambda number: str(number).encode())
USER_HEADERS = st.lists(st.tuples(st.sampled_from(["a", "b", "ä", ORDERING_KEY]), VALUES), max_size=5)
ANY_HEADERS = st.lists(st.tuples(st.sampled_from(["a", "b", *OURS]), VALUES), max_size=8)
BYTES = st.none() | st.binary(max_size=8)


@st.composite
def records(draw: st.DrawFn, headers: st.SearchStrategy[list[Header]] = USER_HEADERS) -> Record:
    return Record(
        draw(st.sampled_from(["orders", "orders-eu-1", "a.b_c"])),
        draw(st.integers(0, 10)),
        draw(st.integers(0, 2**62)),
        draw(st.just(-1) | st.integers(0, NOW)),
        key=draw(BYTES),
        value=draw(BYTES),
        headers=draw(headers),
    )


def as_read(copy: OutgoingCopy, partition: int = 3, offset: int = 17) -> Record:
    """Return the copy as it is read from its topic."""
    timestamp = -1 if copy.timestamp is None else copy.timestamp
    return Record(copy.topic, partition, offset, timestamp, 0, copy.key, copy.value, copy.headers)


def value_of(copy: OutgoingCopy | Record, name: str) -> bytes | None:
    found = [value for each, value in copy.headers if each == name]
    assert len(found) == 1, (name, copy.headers)
    return found[0]


def names(copy: OutgoingCopy | Record) -> set[str]:
    return {name for name, _ in copy.headers}


# --- hops ---------------------------------------------------------------------------------------------------------------


@given(
    records(), st.lists(st.tuples(st.integers(1, 20), st.floats(0, 1e6)), min_size=1, max_size=5), st.text()
)
def test_what_the_user_wrote_survives_every_hop_and_so_does_the_origin(
    record: Record, hops: list[tuple[int, float]], reason: str
) -> None:
    current, attempt = record, 0
    for deliveries, delay in hops:
        attempt += deliveries
        copy = retry_copy(current, RETRY, GROUP, delay, NOW, attempt=attempt)
        check_kept(record, copy, RETRY)
        current = as_read(copy)
        assert earlier_attempts(current) == attempt
        at = deliver_at(current)
        assert at is not None
        late = Fraction(at - NOW, 1000) - Fraction(delay)
        assert -Fraction(1, 10**8) <= late < Fraction(1, 1000)
        assert value_of(copy, DELAY_TIME) == b"%d" % (at - NOW)
    dead = dead_letter_copy(current, DLQ, GROUP, attempt + 1, reason)
    check_kept(record, dead, DLQ)
    assert names(dead) - names(record) == {*ORIGIN, *KIP_1191}
    assert (earlier_attempts(as_read(dead)), deliver_at(as_read(dead))) == (0, None)
    assert value_of(dead, DLQ_DELIVERY_COUNT) == b"%d" % (attempt + 1)


def check_kept(record: Record, copy: OutgoingCopy, topic: str) -> None:
    assert (copy.topic, copy.key, copy.value) == (topic, record.key, record.value)
    assert copy.timestamp == (record.timestamp if record.timestamp >= 0 else None)
    assert copy.headers[: len(record.headers)] == record.headers
    assert user_headers(as_read(copy)) == record.headers
    counts = Counter(name for name, _ in copy.headers if name in OURS)
    assert set(counts.values()) == {1}
    place = f"{record.topic}-{record.partition}@{record.offset}".encode()
    assert [value_of(copy, name) for name in ORIGIN] == [record.topic.encode(), place, place, b"billing"]
    assert origin(as_read(copy)) == RecordOrigin(record.topic, record.partition, record.offset)


def test_a_retry_copy_in_full() -> None:
    record = Record("orders", 2, 41, NOW - 5, 0, b"ann", b"a lamp", [("trace", b"7")])
    copy = retry_copy(record, RETRY, GROUP, 30, NOW, attempt=1)
    assert copy == OutgoingCopy(
        RETRY,
        b"a lamp",
        b"ann",
        [
            ("trace", b"7"),
            (REAL_TOPIC, b"orders"),
            (ORIGIN_MESSAGE_ID, b"orders-2@41"),
            (ORIGIN_MESSAGE_ID_LEGACY, b"orders-2@41"),
            (REAL_SUBSCRIPTION, b"billing"),
            (RECONSUMETIMES, b"1"),
            (DELAY_TIME, b"30000"),
            (DELIVER_AT, b"1700000030000"),
        ],
        NOW - 5,
    )
    assert ORIGIN_MESSAGE_ID_LEGACY == "ORIGIN_MESSAGE_IDY_TIME"


def test_a_dead_letter_in_full() -> None:
    record = Record("orders", 2, 41, NOW - 5, 0, b"ann", b"a lamp", [("trace", b"7")])
    assert dead_letter_copy(record, DLQ, GROUP, 6, "ValueError: ä") == OutgoingCopy(
        DLQ,
        b"a lamp",
        b"ann",
        [
            ("trace", b"7"),
            (REAL_TOPIC, b"orders"),
            (ORIGIN_MESSAGE_ID, b"orders-2@41"),
            (ORIGIN_MESSAGE_ID_LEGACY, b"orders-2@41"),
            (REAL_SUBSCRIPTION, b"billing"),
            ("__dlq.errors.topic", b"orders"),
            ("__dlq.errors.partition", b"2"),
            ("__dlq.errors.offset", b"41"),
            ("__dlq.errors.group", b"billing"),
            ("__dlq.errors.delivery.count", b"6"),
            ("__dlq.errors.message", "ValueError: ä".encode()),
        ],
        NOW - 5,
    )


def test_the_headers_of_a_dead_letter_name_the_first_delivery_not_the_retry_topic() -> None:
    record = Record("orders", 2, 41)
    dead = dead_letter_copy(as_read(retry_copy(record, RETRY, GROUP, 1, NOW, attempt=1)), DLQ, GROUP, 2, "x")
    assert [value_of(dead, name) for name in KIP_1191[:3]] == [b"orders", b"2", b"41"]


def test_a_dead_letter_that_failed_again_has_the_headers_of_its_last_failure_once() -> None:
    first = as_read(dead_letter_copy(Record("orders", 0, 1), DLQ, GROUP, 3, "first"))
    second = dead_letter_copy(first, "dead-again", "other", 1, "second")
    assert value_of(second, DLQ_MESSAGE) == b"second"
    assert value_of(second, DLQ_GROUP) == b"other"
    assert value_of(second, REAL_SUBSCRIPTION) == b"billing"
    assert value_of(second, DLQ_OFFSET) == b"1"


@given(st.text(max_size=5) | st.text("x\n\ud800", min_size=900, max_size=1200))
def test_a_reason_is_text_of_limited_length(reason: str) -> None:
    text = value_of(dead_letter_copy(Record("orders", 0, 1), DLQ, GROUP, 1, reason), DLQ_MESSAGE)
    assert text is not None
    assert len(text.decode()) <= 1001 * 6  # escaped surrogates
    if len(reason) <= 1000 and reason.isprintable():
        assert text.decode() == reason


# --- delays -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (-1, 0),
        (-0.0, 0),
        (0, 0),
        (1, 1000),
        (0.0001, 1),
        (0.001, 1),
        (0.1, 100),
        (0.2, 200),
        (1.0005, 1001),
        (1.5, 1500),
        (math.nan, 0),
        (3600, 3_600_000),
    ],
)
def test_delay_time(delay: float, milliseconds: int) -> None:
    copy = retry_copy(Record("orders", 0, 1), RETRY, GROUP, delay, NOW, attempt=1)
    assert value_of(copy, DELAY_TIME) == b"%d" % milliseconds
    assert deliver_at(as_read(copy)) == NOW + milliseconds


@pytest.mark.parametrize("delay", [math.inf, 1e300, 1e15, 10**400])
def test_an_endless_delay_fits_its_header(delay: float) -> None:
    copy = retry_copy(Record("orders", 0, 1), RETRY, GROUP, delay, NOW, attempt=1)
    assert deliver_at(as_read(copy)) == 2**63 - 1


# --- headers of the call ------------------------------------------------------------------------------------------------


@given(records(), USER_HEADERS)
def test_headers_of_the_call_replace_those_of_the_same_names(record: Record, added: list[Header]) -> None:
    copy = retry_copy(record, RETRY, GROUP, 1, NOW, added, attempt=1)
    replaced = {name for name, _ in added}
    kept = [header for header in record.headers if header[0] not in replaced]
    assert copy.headers[: len(kept) + len(added)] == kept + added
    assert names(copy) - names(record) - replaced == {*ORIGIN, *HOP}


@pytest.mark.parametrize(
    ("given", "attempts"),
    [(b"0", 1), (b"7", 8), (b"-1", 5), (b"many", 5), (None, 5), (b"2147483647", 2**31 - 1)],
)
def test_a_count_among_the_headers_of_the_call_replaces_the_count(given: bytes | None, attempts: int) -> None:
    copy = retry_copy(Record("orders", 0, 1), RETRY, GROUP, 1, NOW, [(RECONSUMETIMES, given)], attempt=5)
    assert value_of(copy, RECONSUMETIMES) == b"%d" % attempts


def test_delivery_time_and_origin_among_the_headers_of_the_call() -> None:
    added: list[Header] = [(DELIVER_AT, b"1"), (DELAY_TIME, b"1"), (REAL_TOPIC, b"mine")]
    copy = retry_copy(Record("orders", 0, 1), RETRY, GROUP, 2, NOW, iter(added), attempt=1)
    assert value_of(copy, DELIVER_AT) == b"%d" % (NOW + 2000)
    assert value_of(copy, DELAY_TIME) == b"2000"
    assert value_of(copy, REAL_TOPIC) == b"mine"


def test_the_record_and_its_headers_are_not_changed() -> None:
    headers: list[Header] = [("a", b"1"), (DELIVER_AT, b"5")]
    record = Record("orders", 0, 1, headers=headers)
    retry_copy(record, RETRY, GROUP, 2, NOW, [("b", b"2")], attempt=1)
    dead_letter_copy(record, DLQ, GROUP, 1, "x")
    assert headers == [("a", b"1"), (DELIVER_AT, b"5")]


# --- foreign and broken headers -----------------------------------------------------------------------------------------


@given(records(ANY_HEADERS), st.integers(1, 2**31))
def test_headers_of_other_programs_never_break_a_copy(record: Record, attempt: int) -> None:
    assert 0 <= earlier_attempts(record) < 2**31
    assert deliver_at(record) is None or 0 <= (deliver_at(record) or 0) < 2**63
    assert user_headers(record) == [header for header in record.headers if header[0] in ("a", "b")]
    for copy in (
        retry_copy(record, RETRY, GROUP, 1, NOW, attempt=attempt),
        dead_letter_copy(record, DLQ, GROUP, attempt, "x"),
    ):
        counts = Counter(name for name, _ in copy.headers)
        assert all(counts[name] == 1 for name in (HOP if copy.topic == RETRY else KIP_1191))
        assert all(counts[name] >= 1 for name in ORIGIN)
        kept = ORIGIN[:-1] if copy.topic == RETRY else ORIGIN
        before = {name: value for name, value in record.headers if name in kept}
        assert before.items() <= dict(copy.headers).items()
        assert user_headers(as_read(copy)) == user_headers(record)


BROKEN = [None, b"", b"-1", b"+1", b" 1", b"1_000", b"1.0", b"0x10", "١".encode(), b"9" * 20, b"\xff", b"1\n"]


@pytest.mark.parametrize("value", BROKEN)
def test_broken_numbers(value: bytes | None) -> None:
    record = Record("orders", 0, 1, headers=[(RECONSUMETIMES, value), (DELIVER_AT, value)])
    assert earlier_attempts(record) == 0
    assert deliver_at(record) is None


def test_the_last_of_several_headers_counts() -> None:
    record = Record(
        "orders", 0, 1, headers=[(RECONSUMETIMES, b"1"), (DELIVER_AT, b"2"), (RECONSUMETIMES, b"3")]
    )
    assert (earlier_attempts(record), deliver_at(record)) == (3, 2)
    assert (earlier_attempts(Record("orders", 0, 1)), deliver_at(Record("orders", 0, 1))) == (0, None)


@pytest.mark.parametrize(
    "message_id",
    [
        None,
        b"",
        b"orders",
        b"orders-0",
        b"orders@5",
        b"-0@5",
        b"a b-0@5",
        b"orders-x@5",
        b"orders-0@-5",
        b"12:3:-1",
        b"\xff-0@1",
        b"orders-0@99999999999999999999",
        b"orders-2147483648@1",
        b"x" * 250 + b"-0@1",
    ],
)
def test_no_origin(message_id: bytes | None) -> None:
    record = Record(DLQ, 0, 9, headers=[(ORIGIN_MESSAGE_ID, message_id)])
    assert origin(record) is None
    dead = dead_letter_copy(record, "dead-again", GROUP, 1, "x")
    assert [value_of(dead, name) for name in KIP_1191[:3]] == [DLQ.encode(), b"0", b"9"]


@given(st.text("ab-@.", min_size=1, max_size=9), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
@example("a-1", 1, 1)
def test_an_origin_is_read_as_it_was_written(topic: str, partition: int, offset: int) -> None:
    found = RecordOrigin(topic, partition, offset)
    record = Record(DLQ, 0, 9, headers=[(ORIGIN_MESSAGE_ID, str(found).encode())])
    assert origin(record) == (None if "@" in topic or topic in (".", "..") else found)


def test_the_origin_of_a_brokers_dead_letter() -> None:
    headers: list[Header] = [(DLQ_TOPIC, b"orders"), (DLQ_PARTITION, b"3"), (DLQ_OFFSET, b"44")]
    assert origin(Record("dlq.orders", 0, 9, headers=headers)) == ("orders", 3, 44)
    for missing in range(3):
        rest = headers[:missing] + headers[missing + 1 :]
        assert origin(Record("dlq.orders", 0, 9, headers=rest)) is None
    assert origin(Record("dlq.orders", 0, 9)) is None


def test_a_retry_copy_names_the_group_that_wrote_it_and_a_dead_letter_the_first_one() -> None:
    theirs = as_read(dead_letter_copy(Record("orders", 0, 1), DLQ, GROUP, 3, "first"))
    given: list[Header] = [(REAL_SUBSCRIPTION, b"mine")]
    copy = as_read(retry_copy(theirs, RETRY, "gr\udc80up", 1, NOW, given, attempt=1))
    assert [value for name, value in copy.headers if name == REAL_SUBSCRIPTION] == [b"gr\\udc80up"]
    assert not is_of_other_group("gr\udc80up", copy)
    assert is_of_other_group(GROUP, copy)
    assert not is_of_other_group(GROUP, Record("orders", 0, 1))
    assert value_of(retry_copy(theirs, RETRY, "other", 1, NOW, attempt=1), ORIGIN_MESSAGE_ID) == b"orders-0@1"
