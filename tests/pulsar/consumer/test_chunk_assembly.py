"""ChunkAssembly: whole values, chunks that are repeated, missing or too many; none is dropped without a reaction."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.pulsar.consumer.receiving.chunk_assembly import (
    AssembledEntry,
    ChunkAssembly,
    ChunkAssemblyLimits,
)
from asyncgroup.pulsar.wire.entry import Entry, EntryError
from tests.profiles import examples
from tests.pulsar.consumer.support import LIMIT, entry_of, id_of, metadata, pushed

NOW_MS = 1000
"""The time of day at which all chunks were published."""


class Scene:
    def __init__(self, limits: ChunkAssemblyLimits | None = None, *, in_order: bool = False) -> None:
        self.assembly = ChunkAssembly(limits or ChunkAssemblyLimits(), largest=LIMIT, in_order=in_order)
        self.now = 10.0
        self.time_of_day = NOW_MS
        self.entry_id = 0

    def add(
        self,
        uuid: str,
        number: int,
        count: int = 3,
        *,
        part: bytes = b"..",
        total: int | None = None,
        entry_id: int | None = None,
        **fields: object,
    ) -> AssembledEntry | None:
        if entry_id is None:
            self.entry_id += 1
            entry_id = self.entry_id
        entry = chunk(uuid, number, count, part, total, entry_id, **fields)
        return self.assembly.add(entry, self.now, self.time_of_day)

    def dropped(self) -> tuple[list[int], list[int]]:
        """What is acknowledged and what is pushed again since the last call."""
        found = (
            [each.entry_id for each in self.assembly.acks],
            [each.entry_id for each in self.assembly.redeliveries],
        )
        self.assembly.acks.clear()
        self.assembly.redeliveries.clear()
        return found


def chunk(uuid: str, number: int, count: int, part: bytes, total: int | None, entry_id: int, **fields: object) -> Entry:  # fmt: skip
    size = count * len(part) if total is None else total
    given_fields = {
        "uuid": uuid,
        "chunk_id": number,
        "num_chunks_from_msg": count,
        "total_chunk_msg_size": size,
        "uncompressed_size": size,
        **fields,
    }
    return entry_of(pushed(entry_id), metadata(**given_fields), part)  # type: ignore[arg-type]


def test_interleaved_values_are_put_together() -> None:
    scene = Scene()
    assert scene.add("a", 0, part=b"a0") is None
    assert scene.add("b", 0, 2, part=b"b0") is None
    assert scene.add("a", 1, part=b"a1") is None
    assert (len(scene.assembly), scene.assembly.bytes) == (2, 6)
    whole = scene.add("b", 1, 2, part=b"b1", partition_key="k")
    assert whole is not None
    assert (whole.body, whole.chunk_ids, whole.id) == (b"b0b1", [id_of(2), id_of(4)], id_of(4))
    [message] = whole.messages()
    assert (message.value, message.key, message.id) == (b"b0b1", b"k", id_of(4))
    last = scene.add("a", 2, part=b"a2")
    assert last is not None
    assert last.body == b"a0a1a2"
    assert (scene.dropped(), scene.assembly.bytes, len(scene.assembly)) == (([], []), 0, 0)


def test_a_value_is_compressed_as_a_whole() -> None:
    scene, value = Scene(), b"value" * 100
    data = zlib.compress(value)
    fields = {"compression": 2, "uncompressed_size": len(value), "total": len(data)}
    scene.add("a", 0, 2, part=data[:9], **fields)
    whole = scene.add("a", 1, 2, part=data[9:], **fields)
    assert whole is not None
    assert whole.body == value
    scene.add("a", 0, 2, part=data[:9], **fields)
    with pytest.raises(EntryError) as raised:
        scene.add("a", 1, 2, part=b"?" * len(data[9:]), **fields)
    assert raised.value.found.number == 1
    assert scene.dropped() == ([3, 4], [])
    fields["uncompressed_size"] = LIMIT + 1
    scene.add("a", 0, 2, part=data[:9], **fields)
    with pytest.raises(EntryError):
        scene.add("a", 1, 2, part=data[9:], **fields)
    assert scene.dropped() == ([5, 6], [])


def test_x1_a_value_that_is_pushed_again_begins_again() -> None:
    scene = Scene()
    scene.add("a", 0)
    scene.add("a", 1)
    assert scene.add("a", 0, entry_id=1) is None
    assert scene.add("a", 1, entry_id=2) is None
    assert scene.add("a", 2) is not None
    assert scene.dropped() == ([], [])


def test_x2_chunks_of_an_attempt_that_was_given_up_are_acknowledged() -> None:
    scene = Scene()
    scene.add("a", 0)
    scene.add("a", 1)
    for number in range(3):
        found = scene.add("a", number)
    assert found is not None
    assert found.chunk_ids == [id_of(3), id_of(4), id_of(5)]
    assert scene.dropped() == ([1, 2], [])


def test_x3_a_repeated_chunk_is_ignored_and_acknowledged_if_it_is_another_entry() -> None:
    scene = Scene()
    scene.add("a", 0)
    scene.add("a", 1)
    scene.add("a", 1, entry_id=2)
    assert scene.dropped() == ([], [])
    scene.add("a", 1)
    assert scene.dropped() == ([3], [])
    assert scene.add("a", 2) is not None


@pytest.mark.parametrize("in_order", [False, True])
def test_x4_a_missing_chunk_gives_the_value_up(*, in_order: bool) -> None:
    scene = Scene(in_order=in_order)
    scene.add("a", 0)
    scene.add("a", 2)
    scene.add("b", 1)
    assert scene.dropped() == (([1, 2, 3], []) if in_order else ([], [1, 2, 3]))
    assert [(report.uuid, report.is_acked) for report in scene.assembly.reports] == [
        ("a", in_order),
        ("b", in_order),
    ]
    scene.time_of_day = NOW_MS + 60_001
    scene.add("b", 1)
    assert scene.dropped() == ([4], [])


def test_chunks_that_contradict_each_other_are_acknowledged() -> None:
    scene = Scene()
    scene.add("a", 0)
    scene.add("a", 1, 4)
    assert scene.dropped() == ([], [1, 2]), "another number of chunks: it may be another attempt"
    scene.add("b", 0, 2, part=b"...", total=5)
    scene.add("b", 1, 2, part=b"...", total=5)
    assert scene.dropped() == ([3, 4], [])
    scene.add("c", 0, 2, part=b".", total=5)
    scene.add("c", 1, 2, part=b".", total=5)
    assert scene.dropped() == ([5, 6], [])


@pytest.mark.parametrize("acks_oldest", [False, True])
def test_the_oldest_value_is_given_up_for_others(*, acks_oldest: bool) -> None:
    scene = Scene(ChunkAssemblyLimits(max_pending=2, acks_oldest=acks_oldest))
    for uuid in "abc":
        scene.add(uuid, 0)
    assert scene.dropped() == (([1], []) if acks_oldest else ([], [1]))
    scene = Scene(ChunkAssemblyLimits(max_bytes=9, acks_oldest=acks_oldest))
    scene.add("a", 0, part=b"...")
    scene.add("b", 0, part=b"...")
    scene.add("b", 1, part=b"...")
    scene.add("b", 2, part=b"...")
    assert scene.dropped() == (([1], []) if acks_oldest else ([], [1]))
    scene.add("c", 0, part=b"....")
    assert scene.dropped() == ([5], []), "it never fits"
    in_order = Scene(ChunkAssemblyLimits(max_pending=1), in_order=True)
    in_order.add("a", 0)
    in_order.add("b", 0)
    assert in_order.dropped() == ([], []), "it comes again on the next connection"


def test_a_value_without_further_chunks_expires() -> None:
    scene = Scene(ChunkAssemblyLimits(expiry=60.0))
    assert scene.assembly.expires_at == float("inf")
    scene.add("a", 0)
    scene.now = 40.0
    scene.add("b", 0)
    assert scene.assembly.expires_at == 70.0
    scene.assembly.expire(69.9)
    assert scene.dropped() == ([], [])
    scene.assembly.expire(70.0)
    assert scene.dropped() == ([1], [])
    assert scene.assembly.expires_at == 100.0
    scene.assembly.clear()
    assert (scene.assembly.expires_at, scene.assembly.bytes) == (float("inf"), 0)
    never = Scene(ChunkAssemblyLimits(expiry=0))
    never.add("a", 0)
    never.assembly.expire(1e9)
    assert (never.assembly.expires_at, never.dropped()) == (float("inf"), ([], []))


@given(st.integers(0, 2**31).map(random.Random), st.booleans())
@settings(max_examples=examples(300))
def test_every_chunk_is_part_of_a_value_or_has_a_reaction(rng: random.Random, in_order: bool) -> None:
    """Random chunks with repetitions and gaps: each id is held, delivered, acknowledged or asked for again, and in one place."""
    limits = ChunkAssemblyLimits(max_pending=rng.choice([0, 1, 2, 3]), max_bytes=30, expiry=5.0)
    scene = Scene(limits, in_order=in_order)
    open_ids: set[int] = set()
    chunks: dict[int, tuple[str, int, bytes]] = {}
    for _ in range(rng.randrange(40)):
        entry_id = scene.entry_id + 1
        chunks[entry_id] = rng.choice("abc"), rng.randrange(3), b"..." if rng.random() < 0.9 else b".."
        if open_ids and rng.random() < 0.1:
            del chunks[entry_id]
            entry_id = rng.choice(sorted(open_ids))
        else:
            scene.entry_id = entry_id
        uuid, number, part = chunks[entry_id]
        open_ids.add(entry_id)
        before = scene.assembly._values.get(uuid)
        if before is not None and number == 0 and id_of(entry_id) in before.ids:
            open_ids -= {
                each.entry_id for each in before.ids[1:]
            }  # the broker pushes these again, as the first one
        found = scene.add(uuid, number, part=part, total=9, entry_id=entry_id)
        scene.now += rng.choice([0, 0, 1])
        scene.assembly.expire(scene.now)
        acked, redelivered = scene.dropped()
        open_ids -= {*acked, *redelivered}
        if found is not None:
            assert found.body == b"." * 9
            assert len(found.chunk_ids) == 3
            open_ids -= {each.entry_id for each in found.chunk_ids}
        held = [each.entry_id for value in scene.assembly._values.values() for each in value.ids]
        if not in_order:
            assert open_ids <= set(held)
        assert scene.assembly.bytes == sum(value.bytes for value in scene.assembly._values.values()) <= 30
        assert len(scene.assembly) <= (limits.max_pending or 3)
