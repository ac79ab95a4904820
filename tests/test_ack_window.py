"""AckWindow beside a plain set of offsets; its encoding, whole and cut to a limit."""

from __future__ import annotations

import random
import string
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup import ack_runs
from asyncgroup.ack_window import AckWindow
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.commit_metadata import (
    MAX_METADATA,
    CommitMetadata,
    decode_metadata,
    encode_metadata,
    window_room,
)
from asyncgroup.offsets.window_encoding import decode_window, encode_window
from asyncgroup.wire.messages import NO_UUID

BASE = 1_000
OFFSETS = st.integers(BASE - 3, BASE + 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), OFFSETS, st.just(0)),
        st.tuples(st.just("range"), OFFSETS, st.integers(0, 9)),
        st.tuples(st.just("attempts"), OFFSETS, st.integers(0, 5)),
        st.tuples(st.just("truncate"), OFFSETS, st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([2, 3, ack_runs.BLOCK]))
def test_a_window_is_a_set_of_offsets(steps: list[tuple[str, int, int]], block: int) -> None:
    with mock.patch.object(ack_runs, "BLOCK", block):
        check_steps(steps)


def check_steps(steps: list[tuple[str, int, int]]) -> None:
    window, acked, attempts, base = AckWindow(BASE), set[int](), dict[int, int](), BASE
    for step, offset, number in steps:
        if step == "ack":
            assert window.ack(offset) == (offset >= base and offset not in acked)
            acked.add(offset)
        elif step == "range":
            window.ack_range(offset, offset + number)
            acked |= set(range(offset, offset + number))
        elif step == "attempts":
            window.set_attempts(offset, number, in_advance=bool(number % 2))
            if offset >= base and offset not in acked:
                attempts[offset] = number
        else:
            window.truncate(offset)
            acked = {at for at in acked if at < offset}
            attempts = {at: count for at, count in attempts.items() if at < offset}
            base = min(base, offset)
        while base in acked:
            base += 1
        attempts = {at: count for at, count in attempts.items() if count and at not in acked and at >= base}
        above = {at for at in acked if at > base}
        assert (window.base, window.attempts) == (base, attempts)
        assert window.unfinished <= attempts.keys()
        assert {at for start, end in window.runs for at in range(start, end)} == above
        assert all(end < start for (_, end), (start, _) in zip(window.runs, window.runs[1:], strict=False))
        assert window.end == max(above, default=base - 1) + 1
        assert window.acked_above == len(above)
        assert list(zip(*window.first_runs(2), strict=True)) == window.runs[:2]
        assert [at in window for at in range(base - 2, base + 80)] == [
            at < base or at in above for at in range(base - 2, base + 80)
        ]


def random_window(rng: random.Random, span: int, missing: float, attempts: int = 0) -> AckWindow:
    """Return a window of `span` offsets of which a share is not acknowledged; the first never is, the last always."""
    window = AckWindow(BASE)
    for offset in range(BASE + 1, BASE + span - 1):
        if rng.random() >= missing:
            window.ack(offset)
    window.ack(BASE + span - 1)
    for _ in range(attempts):
        window.set_attempts(BASE + rng.randrange(span), rng.randint(1, 300), in_advance=rng.random() < 0.5)
    return window


def same(one: AckWindow, other: AckWindow) -> bool:
    return (one.base, one.runs, one.attempts, one.unfinished) == (
        other.base,
        other.runs,
        other.attempts,
        other.unfinished,
    )


@given(
    st.integers(0, 10**9),
    st.integers(2, 3_000),
    st.sampled_from([0.0, 0.002, 0.05, 0.5, 0.95, 0.999]),
    st.integers(0, 9),
)
def test_a_window_survives_its_encoding(seed: int, span: int, missing: float, attempts: int) -> None:
    window = random_window(random.Random(seed), span, missing, attempts)
    text = encode_window(window, BASE, 10**6).text
    assert ";" not in text
    assert same(decode_window(text, BASE), window)
    assert same(decode_window(encode_window(window, BASE - 7, 10**6).text, BASE - 7), window)


@given(st.integers(0, 10**9), st.integers(2, 3_000), st.floats(0, 1), st.integers(0, 40), st.integers(0, 400))
def test_a_window_that_does_not_fit_loses_only_acknowledgements(
    seed: int, span: int, missing: float, attempts: int, room: int
) -> None:
    window = random_window(random.Random(seed), span, missing, attempts)
    text = encode_window(window, BASE, room).text
    assert len(text) <= room
    kept = decode_window(text, BASE)
    assert kept.base == window.base
    assert kept.runs == window.runs[: len(kept.runs)]
    assert kept.attempts.items() <= window.attempts.items()
    assert kept.unfinished == window.unfinished & kept.attempts.keys()
    if len(kept.runs) < len(window.runs):
        assert len(text) > room // 2 - 16  # what fits is used


@pytest.mark.parametrize(
    ("span", "missing", "bound"),
    # the bound: a few characters above what parallel-consumer's table in base85, Golomb-Rice included, would need
    [
        (5_000, 0.5, 800),
        (5_000, 0.05, 260),
        (5_000, 0.01, 80),
        (24_000, 0.5, 3_770),
        (24_000, 0.2, 2_830),
        (24_000, 0.05, 1_110),
        (24_000, 0.01, 330),
        (24_000, 0.002, 90),
        (100_000, 0.01, 1_340),
        (100_000, 0.002, 340),
    ],
)
def test_a_random_window_is_small(span: int, missing: float, bound: int) -> None:
    window = random_window(random.Random(span), span, missing)
    assert len(encode_window(window, BASE, 10**6).text) <= bound


@given(st.text(string.printable, max_size=40) | st.text(max_size=10))
def test_any_text_is_a_window_or_an_error(text: str) -> None:
    try:
        window = decode_window(text, BASE)
    except ValueError:
        with pytest.raises(ValueError, match="not an encoded window"):
            decode_window(text, BASE)
    else:
        assert window.base >= BASE


def test_an_empty_window_is_no_text() -> None:
    assert encode_window(AckWindow(7), 7, 4096).text == ""
    assert same(decode_window("", 7), AckWindow(7))


# --- in the metadata of a commit -------------------------------------------------------------------------------------------

TP = TopicPartition("orders", 3)
TOPIC_ID = UUID("6f1f3c58-3b74-4d5e-9a37-0c1f2f8f9a10")


@given(
    st.integers(0, 10**9),
    st.text(max_size=200),
    st.sampled_from([NO_UUID, TOPIC_ID]),
    st.booleans(),
    st.sampled_from([-1, 0, 2**31 - 1]),
)
def test_an_envelope_holds_topic_id_window_flag_epoch_and_text(
    seed: int, text: str, topic_id: UUID, is_open: bool, epoch: int
) -> None:
    window = random_window(random.Random(seed), 40_000, 0.3, 20)
    others = CommitMetadata(text, topic_id, "", is_open, epoch)
    content = others._replace(window=encode_window(window, BASE, window_room(others)).text)
    metadata = encode_metadata(TP, BASE, content)
    assert MAX_METADATA - 12 <= len(metadata.encode(errors="surrogatepass")) <= MAX_METADATA
    assert decode_metadata(TP, BASE, metadata) == content
    assert decode_metadata(TP, BASE + 1, metadata) == CommitMetadata(metadata)
    assert decode_metadata(TopicPartition("orders", 4), BASE, metadata) == CommitMetadata(metadata)
