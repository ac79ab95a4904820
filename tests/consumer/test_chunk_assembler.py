"""The assembler of chunks: interleaved, repeated and lost chunks, limits, expiry, and going back."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.consumer.chunk_assembler import ChunkAssembler, ChunkLimits, ChunkListener, DropReason
from asyncgroup.model import ChunkedRecord, Record
from asyncgroup.wire.chunks import ChunkInfo, split_value
from tests.profiles import examples

RANDOM = st.integers(0, 2**31).map(random.Random)
ROOMY = ChunkLimits(1000, 1 << 20, 60.0)


class Events(ChunkListener):
    def __init__(self) -> None:
        self.begun: list[int] = []
        self.completed: list[tuple[int, int]] = []
        self.dropped: list[tuple[int, DropReason]] = []
        self.forgotten: list[int] = []

    def on_begun(self, first_offset: int, leader_epoch: int) -> None:
        assert leader_epoch == 4
        self.begun.append(first_offset)

    def on_completed(self, first_offset: int, last_offset: int) -> None:
        self.completed.append((first_offset, last_offset))

    def on_dropped(self, first_offset: int, reason: DropReason, uuid: str) -> None:
        assert uuid
        self.dropped.append((first_offset, reason))

    def on_forgotten(self, first_offset: int) -> None:
        self.forgotten.append(first_offset)


class Scene:
    """An assembler that gets one chunk per offset, and hands out each whole record at once."""

    def __init__(self, limits: ChunkLimits = ROOMY) -> None:
        self.events = Events()
        self.assembler = ChunkAssembler(limits, self.events)
        self.offset = 0
        self.now = 1000.0

    def add(self, uuid: str, number: int, count: int = 3, part: bytes = b"..", total: int | None = None) -> Record | None:  # fmt: skip
        info = ChunkInfo(uuid, number, count, count * len(part) if total is None else total)
        record = self.add_record(info, part)
        self.assembler.confirm()
        return record

    def add_record(self, info: ChunkInfo, part: bytes) -> Record | None:
        headers = [*info.headers(), ("trace", b"1")]
        record = Record("orders", 0, self.offset, 77, 0, b"key", part, headers, 4)
        self.offset += 1
        return self.assembler.add(record, self.now)


@pytest.fixture
def scene() -> Scene:
    """A scene with room for all chunks."""
    return Scene()


def test_the_record_of_a_value(scene):
    assert scene.add("a", 0, 2, b"one ") is None
    record = scene.add("a", 1, 2, b"two ")
    assert record == Record("orders", 0, 1, 77, 0, b"key", b"one two ", [("trace", b"1")], 4)
    assert isinstance(record, ChunkedRecord)
    assert (record.first_offset, record.offset) == (0, 1)
    assert Record("orders", 0, 5).first_offset == 5
    assert (scene.events.begun, scene.events.completed, scene.events.dropped) == ([0], [(0, 1)], [])
    assert (len(scene.assembler), scene.assembler.bytes) == (0, 0)


def test_a_value_of_one_chunk(scene):
    record = scene.add("a", 0, 1)
    assert record is not None
    assert (record.value, record.first_offset) == (b"..", 0)


def test_a_record_with_impossible_headers_is_returned_as_it_is(scene):
    record = scene.add_record(ChunkInfo("a", 7, 3, 6), b"..")
    assert record is not None
    assert record.headers[0] == ("ag-chunk-uuid", b"a")


def test_duplicates_of_any_chunk_are_ignored(scene):
    found = [scene.add("a", number) for number in (0, 0, 1, 0, 1, 2)]
    assert [record is not None for record in found] == [False] * 5 + [True]
    assert scene.events.completed == [(0, 5)]
    assert scene.events.dropped == []


def test_a_value_that_was_written_again_from_its_begin(scene):
    """The producer failed between two chunks and wrote all chunks again: the value is delivered once."""
    found = [scene.add("a", number) for number in (0, 1, 0, 1, 2, 0, 1, 2)]
    assert [number for number, record in enumerate(found) if record is not None] == [4]
    assert scene.events.dropped == []
    scene.assembler.move_to(0)
    scene.offset = 0
    assert [scene.add("a", number) is not None for number in range(3)] == [False, False, True]


def test_a_gap_ends_the_value_and_its_other_chunks_are_ignored(scene):
    assert [scene.add("a", number, 5) for number in (0, 2, 3, 4)] == [None] * 4
    assert scene.events.dropped == [(0, DropReason.GAP)]


def test_chunks_without_the_first_one_are_reported_once(scene):
    assert [scene.add("a", number) for number in (1, 2)] == [None] * 2
    scene.add("b", 2)
    assert scene.events.dropped == [(0, DropReason.NO_FIRST_CHUNK), (2, DropReason.NO_FIRST_CHUNK)]
    assert scene.events.begun == []


def test_chunks_that_contradict_each_other(scene):
    scene.add("a", 0, total=6)
    scene.add("a", 1, total=7)  # another size
    scene.add("b", 0, total=5)
    scene.add("b", 1, total=5)
    scene.add("b", 2, total=5)  # six bytes
    scene.add("c", 0, 2, total=5)
    scene.add("c", 1, 2, total=5)  # four bytes
    assert scene.events.dropped == [(0, "mismatch"), (2, "mismatch"), (5, "mismatch")]
    assert scene.events.completed == []


def test_the_oldest_value_is_given_up_when_too_many_are_incomplete():
    scene = Scene(ROOMY._replace(max_pending=2))
    for uuid in "abc":
        scene.add(uuid, 0, 2)
    assert scene.events.dropped == [(0, DropReason.TOO_MANY)]
    assert [scene.add(uuid, 1, 2) is not None for uuid in "abc"] == [False, True, True]
    assert len(scene.events.dropped) == 1


def test_an_empty_chunk_contradicts_its_headers(scene):
    """Each chunk has at least one byte; otherwise the limit in bytes would not limit the number of chunks that are held."""
    scene.add("a", 0, 9, total=100)
    for number in range(1, 4):
        scene.add("a", number, 9, b"", total=100)
    assert scene.events.dropped == [(0, DropReason.MISMATCH)]
    assert scene.add("b", 0, 2, b"", total=2) is None
    assert scene.events.dropped[1:] == [(4, DropReason.MISMATCH)]
    assert len(scene.assembler) == 0


def test_a_long_id_is_not_that_of_a_chunk(scene):
    """The ids of values that have ended are remembered, in limited memory."""
    assert scene.add("a" * 1024, 0) is None
    record = scene.add("a" * 1025, 0)
    assert record is not None
    assert record.headers[1] == ("ag-chunk-id", b"0")
    assert scene.events.begun == [0]


def test_bytes_are_limited():
    scene = Scene(ROOMY._replace(max_bytes=10))
    assert scene.add("large", 0, 2, b"......") is None
    assert scene.events.dropped == [(0, DropReason.TOO_LARGE)]
    scene.add("large", 1, 2, b"......")
    assert len(scene.events.dropped) == 1
    scene.add("a", 0, 2, b".....")
    scene.add("b", 0, 2, b".....")
    assert scene.assembler.bytes == 10
    scene.add("c", 0, 2, b".")
    assert scene.events.dropped[1:] == [(2, DropReason.TOO_LARGE)]
    assert scene.add("b", 1, 2, b".....") is not None


def test_values_without_a_chunk_for_long_expire(scene):
    scene.add("a", 0)
    scene.now += 30.0
    scene.add("b", 0)
    scene.add("a", 1)
    assert scene.assembler.expires_at == 1090.0
    scene.assembler.expire(1089.0)
    assert len(scene.assembler) == 2
    scene.assembler.touch(1089.0)
    scene.assembler.expire(1090.0)
    assert len(scene.assembler) == 2
    scene.assembler.expire(1149.0)
    assert scene.events.dropped == [(0, DropReason.EXPIRED), (1, DropReason.EXPIRED)]
    assert scene.assembler.expires_at == float("inf")
    assert scene.add("a", 2) is None
    assert len(scene.events.dropped) == 2


def test_going_back_to_the_last_chunk_completes_the_value_once_more(scene):
    scene.add("a", 0, 2)
    info = ChunkInfo("a", 1, 2, 4)
    assert scene.add_record(info, b"..") is not None
    scene.assembler.move_to(1)  # before the reader had it
    scene.offset = 1
    assert scene.add_record(info, b"..") is not None
    scene.assembler.move_to(2)  # after that
    assert len(scene.assembler) == 0


def test_going_back_before_the_first_chunk_holds_the_value_until_it_begins_again_or_expires(scene):
    scene.add("a", 0)
    scene.add("b", 0)
    scene.assembler.move_to(0)
    assert (scene.assembler.first_offset, scene.assembler.bytes) == (0, 0)
    scene.offset = 0
    assert [scene.add("a", number) is not None for number in range(3)] == [False, False, True]
    scene.assembler.expire(scene.now + 60.0)
    assert scene.events.dropped == [(1, DropReason.EXPIRED)]


def test_values_in_the_truncated_part_of_a_log_are_forgotten(scene):
    scene.add("a", 0)
    scene.add("b", 0)
    scene.add("a", 1)
    scene.assembler.forget_from(1)
    scene.assembler.move_to(1)
    scene.offset = 1
    assert [scene.add("a", number) is not None for number in (1, 2)] == [False, True]
    assert len(scene.assembler) == 0
    assert scene.events.forgotten == [1]
    assert scene.events.dropped == []
    assert [scene.add("b", number) is not None for number in range(3)] == [False, False, True]


# --- at random -------------------------------------------------------------------------------------------------------


def interleaved(rng: random.Random, values: int, *, repeat: float = 0.0, lose: float = 0.0) -> list[tuple[ChunkInfo, bytes]]:  # fmt: skip
    """Return the chunks of random values, each in its order, with some of them repeated or lost."""
    queues = []
    for number in range(values):
        value = rng.randbytes(rng.randint(1, 40))
        chunks = list(split_value(f"v{number}", value, rng.randint(1, 15)))
        sent: list[tuple[ChunkInfo, bytes]] = []
        for chunk in chunks:
            sent.append(chunk)
            if rng.random() < repeat:  # from any earlier chunk on
                sent += sent[sent.index(rng.choice(sent)) :]
        queues.append([chunk for chunk in sent if rng.random() >= lose])
    found = []
    while queues := [queue for queue in queues if queue]:
        found.append(rng.choice(queues).pop(0))
    return found


def expected(log: list[tuple[ChunkInfo, bytes]]) -> dict[int, tuple[int, bytes]]:
    """Return what a reader gets, by offset: first offset and value. The model keeps the chunks of each value in a list."""
    held: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    found = {}
    for offset, (info, part) in enumerate(log):
        chunks = held[info.uuid]
        if any(log[other][0].uuid == info.uuid for other in found):
            continue
        if info.chunk_id > len(chunks):
            chunks.clear()
        elif info.chunk_id == len(chunks):
            chunks.append((offset, part))
        if len(chunks) == info.chunk_count:
            found[offset] = (chunks[0][0], b"".join(text for _, text in chunks))
            chunks.clear()
    return found


@settings(max_examples=examples(400))
@given(
    RANDOM,
    st.integers(1, 8),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.1]),
)
def test_random_logs(rng, values, repeat, lose):
    log = interleaved(rng, values, repeat=repeat, lose=lose)
    scene, found = Scene(), {}
    for offset, (info, part) in enumerate(log):
        if (record := scene.add_record(info, part)) is not None:
            found[offset] = (record.first_offset, record.value)
        scene.assembler.confirm()
    assert found == expected(log)
    if not lose:
        assert sorted(log[offset][0].uuid for offset in found) == sorted({info.uuid for info, _ in log})
    # each value that began has ended, or is still held
    ended = len(scene.events.completed) + sum(
        reason != "no first chunk" for _, reason in scene.events.dropped
    )
    assert len(scene.events.begun) == ended + len(scene.assembler)


@settings(max_examples=examples(400))
@given(RANDOM, st.integers(1, 6), st.integers(1, 4), st.integers(8, 60))
def test_limits_hold_in_random_logs(rng, values, max_pending, max_bytes):
    """The values that are delivered are whole, and none is delivered twice, although others are dropped."""
    log = interleaved(rng, values, repeat=0.1, lose=0.05)
    whole = expected(log)
    scene, found = Scene(ChunkLimits(max_pending, max_bytes, 5.0)), {}
    for offset, (info, part) in enumerate(log):
        scene.now += rng.choice((0.0, 0.5))
        scene.assembler.expire(scene.now)
        if (record := scene.add_record(info, part)) is not None:
            found[offset] = (record.first_offset, record.value)
        scene.assembler.confirm()
        assert len(scene.assembler) <= max_pending
        assert scene.assembler.bytes <= max_bytes
    assert {value for _, value in found.values()} <= {value for _, value in whole.values()}
