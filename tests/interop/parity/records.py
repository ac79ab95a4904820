"""Stories about records: valid and invalid writes, fetches, lookups by timestamp and epoch."""

from __future__ import annotations

import struct
from typing import Final

from asyncgroup.wire import messages as m
from tests.broker.batches import batch, sequenced, with_crc
from tests.interop.parity.asks import fetch, list_offsets, produce
from tests.interop.parity.scene import TYPED_PRODUCER, Scene

__all__ = [
    "fetch_sessions",
    "fetches",
    "idempotent_writes",
    "lookups",
    "refused_batches",
    "topics_with_record_settings",
    "writes",
]

ATTRIBUTES: Final = 21
LAST_OFFSET_DELTA: Final = 23
MAX_TIMESTAMP: Final = 35
COUNT: Final = 57


async def writes(scene: Scene) -> None:
    """Valid Produce requests, unknown partitions, all acks values."""
    topic = await scene.topic("writes", 2)
    for acks in (-1, 1, 2, -2):
        await scene.ask(f"acks={acks}", produce(scene, topic, {0: batch(b"a", b"b")}, acks=acks))
    client = await scene.client()
    client.send(produce(scene, topic, {0: batch(b"quiet")}, acks=0), scene.version("Produce"))
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        await scene.ask(codec, produce(scene, topic, {1: batch(b"x" * 100, b"y" * 100, codec=codec)}))
    await scene.ask("both partitions", produce(scene, topic, {0: batch(b"0"), 1: batch(b"1")}))
    await scene.ask("an unknown partition", produce(scene, topic, {0: batch(b"0"), 7: batch(b"7")}))
    await scene.ask("an unknown topic", produce(scene, "nothing", {0: batch(b"0")}))
    await scene.ask("no partitions", produce(scene, topic, {}))
    if scene.version("Produce") < 13:
        await scene.ask("a topic that cannot be", produce(scene, "no such/name", {0: batch(b"0")}))
        await scene.ask("no topic", produce(scene, "", {0: batch(b"0")}))
    await scene.ask("all of it", fetch(scene, topic, {0: 0, 1: 0}))
    client = await scene.client("acks=0")
    client.send(produce(scene, topic, {7: batch(b"lost")}, acks=0), scene.version("Produce"))
    scene.keep("acks=0 to an unknown partition", (await client.disconnected()).hex())
    await scene.hang_up("acks=0")


async def refused_batches(scene: Scene) -> None:
    """Batches that every broker rejects."""
    topic = await scene.topic("refused", 1)
    good = batch(b"a", b"b", b"c")
    cases = {  # not without any (null): a real broker answers that never
        "empty records": b"",
        "a few bytes": b"\x00" * 20,
        "a batch cut short": good[:-1],
        "a batch and a half": good + good[:30],
        "two batches": good + batch(b"d"),
        "a byte too many": good + b"\x00",
        "a wrong checksum": good[:-1] + bytes([good[-1] ^ 1]),
        "an unknown magic": good[:16] + b"\x03" + good[17:],
        "magic 1": good[:16] + b"\x01" + good[17:],
        "magic 0": good[:16] + b"\x00" + good[17:],
        "a length of nothing": good[:8] + struct.pack(">i", 0) + good[12:],
        "a negative length": good[:8] + struct.pack(">i", -1) + good[12:],
        "fewer records than said": with_crc(good, COUNT, struct.pack(">i", 4)),
        "more records than said": with_crc(good, COUNT, struct.pack(">i", 2)),
        "no records in the batch": with_crc(good, COUNT, struct.pack(">i", 0)),
        "offsets that do not fit": with_crc(good, LAST_OFFSET_DELTA, struct.pack(">i", 5)),
        "a negative last offset": with_crc(good, LAST_OFFSET_DELTA, struct.pack(">i", -1)),
        "a codec that is none": with_crc(good, ATTRIBUTES, b"\x00\x07"),
        "not what the codec says": with_crc(good, ATTRIBUTES, b"\x00\x01"),
        "a control batch": with_crc(good, ATTRIBUTES, b"\x00\x20"),
        "a transactional control batch": with_crc(good, ATTRIBUTES, b"\x00\x30"),
        "log append time": with_crc(good, ATTRIBUTES, b"\x00\x08"),
        "another first offset": struct.pack(">q", 77) + good[8:],
        "a leader epoch": good[:12] + struct.pack(">i", 9) + good[16:],
        "a highest time that is not": with_crc(good, MAX_TIMESTAMP, struct.pack(">q", 5)),
        "a negative time": batch(b"n", timestamp=-5),
        "the time -1": batch(b"n", timestamp=-1),
        "too large": batch(b"x" * 1_100_000),
    }
    for label, data in cases.items():
        await scene.ask(label, produce(scene, topic, {0: data}))
    await scene.ask(
        "too large, compressed", produce(scene, topic, {0: batch(b"x" * 1_100_000, codec="gzip")})
    )
    await scene.ask("the end of it", list_offsets(scene, topic, [(0, -1)]))


async def idempotent_writes(scene: Scene) -> None:
    """Sequence numbers: in order, duplicate, with gaps, of other epochs."""
    topic = await scene.topic("idempotent", 2)
    cases = {
        "the first": sequenced(0, 2),
        "the next": sequenced(2, 1),
        "repeated": sequenced(2, 1),
        "an older one repeated": sequenced(0, 2),
        "part of one": sequenced(0, 1),
        "a gap": sequenced(9, 1),
        "another epoch, from 0": sequenced(0, 1, epoch=1),
        "the epoch before": sequenced(3, 1),
        "a later epoch, not from 0": sequenced(5, 1, epoch=3),
        "an unknown producer, not from 0": sequenced(5, 1, producer_id=TYPED_PRODUCER + 1),
    }
    for label, data in cases.items():
        await scene.ask(label, produce(scene, topic, {0: data}))
    for number in range(7):
        await scene.ask(
            f"number {number}", produce(scene, topic, {1: sequenced(number, producer_id=TYPED_PRODUCER)})
        )
    for number in range(7):
        again = produce(scene, topic, {1: sequenced(number, producer_id=TYPED_PRODUCER)})
        await scene.ask(f"number {number} again", again)
    await scene.ask(
        "a negative sequence", produce(scene, topic, {1: batch(b"x", producer_id=8, producer_epoch=0)})
    )
    await scene.ask(
        "no producer epoch", produce(scene, topic, {1: batch(b"x", producer_id=8, base_sequence=0)})
    )
    await scene.ask(
        "transactional outside of any",
        produce(
            scene,
            topic,
            {1: batch(b"x", producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)},
        ),
    )
    await scene.ask("all of it", fetch(scene, topic, {0: 0, 1: 0}))


async def topics_with_record_settings(scene: Scene) -> None:
    """Topics whose settings reject or change records."""
    compacted = await scene.topic("compacted", 1, cleanup_policy="compact")
    stamped = await scene.topic("stamped", 1, message_timestamp_type="LogAppendTime")
    small = await scene.topic("small", 1, max_message_bytes="200")
    recent = await scene.topic("recent", 1, message_timestamp_before_max_ms="1000")
    future = await scene.topic("future", 1, message_timestamp_after_max_ms="1000")
    keyless = scene_batch_without_key()
    await scene.ask("without a key", produce(scene, compacted, {0: keyless}))
    await scene.ask("with a key", produce(scene, compacted, {0: batch(b"v")}))
    await scene.ask("stamped by the broker", produce(scene, stamped, {0: batch(b"v", b"w")}))
    await scene.ask("read stamped", fetch(scene, stamped, {0: 0}))
    await scene.ask("small enough", produce(scene, small, {0: batch(b"v")}))
    await scene.ask("too large", produce(scene, small, {0: batch(b"v" * 200)}))
    await scene.ask("too old", produce(scene, recent, {0: batch(b"v")}))
    await scene.ask("too new", produce(scene, future, {0: batch(b"v", timestamp=1 << 42)}))


def scene_batch_without_key() -> bytes:
    """Return a batch whose record has no key."""
    from asyncgroup.wire.records import BatchBuilder

    builder = BatchBuilder("none", 1 << 20)
    assert builder.append(1000, None, b"v")
    return builder.build()


async def fetches(scene: Scene) -> None:
    """Fetch inside and outside of a log."""
    topic = await scene.topic("fetches", 3)
    await scene.ask("the beginning of nothing", fetch(scene, topic, {0: 0}))
    for number in range(3):
        await scene.quietly(
            produce(scene, topic, {0: batch(b"%d" % number, b"x" * 400, timestamp=number)}),
            scene.version("Produce"),
        )
    await scene.quietly(produce(scene, topic, {1: batch(b"one")}), scene.version("Produce"))
    for offset in (0, 1, 2, 5, 6, 7, -1, -2):
        await scene.ask(f"from {offset}", fetch(scene, topic, {0: offset}))
    cases = {
        "two partitions": fetch(scene, topic, {0: 4, 1: 0, 2: 0}),
        "an unknown partition besides": fetch(scene, topic, {1: 0, 9: 0}),
        "an unknown partition": fetch(scene, topic, {-1: 0}),
        "an unknown topic": fetch(scene, "nothing", {0: 0}),
        "one byte of a partition": fetch(scene, topic, {0: 0, 1: 0}, limit=1),
        "one byte in all": fetch(scene, topic, {1: 0, 0: 0}, max_bytes=1),
        "nothing at all": fetch(scene, topic, {}),
        "min_bytes with no time": fetch(scene, topic, {2: 0}, min_bytes=100),
        "a wait in vain": fetch(scene, topic, {2: 0}, min_bytes=1, max_wait_ms=30),
        "an unknown partition does not wait": fetch(scene, topic, {9: 0}, min_bytes=1, max_wait_ms=30),
        "read committed": fetch(scene, topic, {0: 0}, isolation_level=1),
        "an isolation level that is none": fetch(scene, topic, {1: 0}, isolation_level=7),
    }
    if scene.version("Fetch") >= 9:
        for epoch in (0, 1, 7):
            cases[f"in leader epoch {epoch}"] = fetch(scene, topic, {1: 0}, epoch=epoch)
    if scene.version("Fetch") >= 11:
        cases["from a rack"] = fetch(scene, topic, {1: 0}, rack_id="rack-1")
        cases["from another rack"] = fetch(scene, topic, {1: 0}, rack_id="rack-7")
    if scene.version("Fetch") >= 12:
        for epoch, offset in ((0, 1), (0, 0), (3, 0), (0, 9)):
            cases[f"last epoch {epoch} at {offset}"] = fetch(scene, topic, {1: offset}, last_epoch=epoch)
    for label, request in cases.items():
        await scene.ask(label, request)


async def fetch_sessions(scene: Scene) -> None:
    """Incremental fetch sessions (KIP-227)."""
    if scene.version("Fetch") < 7:
        return
    topic = await scene.topic("sessions", 3)
    version = scene.version("Produce")
    await scene.quietly(produce(scene, topic, {0: batch(b"0"), 1: batch(b"1")}), version)
    begun = await scene.ask("begin", fetch(scene, topic, {0: 0, 1: 0, 2: 0}, session_epoch=0))
    number = begun.session_id
    await scene.ask("go on", fetch(scene, topic, {0: 1, 1: 1}, session_id=number, session_epoch=1))
    await scene.quietly(produce(scene, topic, {1: batch(b"11")}), version)
    await scene.ask("what is new", fetch(scene, topic, {}, session_id=number, session_epoch=2))
    await scene.ask("the same again", fetch(scene, topic, {}, session_id=number, session_epoch=3))
    await scene.ask("an old epoch", fetch(scene, topic, {}, session_id=number, session_epoch=3))
    await scene.ask("an epoch to come", fetch(scene, topic, {}, session_id=number, session_epoch=9))
    await scene.ask("forgotten", fetch(scene, topic, {}, session_id=number, session_epoch=4, forgotten=[1]))
    await scene.ask("without it", fetch(scene, topic, {}, session_id=number, session_epoch=5))
    await scene.ask("a bad offset", fetch(scene, topic, {0: 99}, session_id=number, session_epoch=6))
    await scene.ask("again and again", fetch(scene, topic, {}, session_id=number, session_epoch=7))
    await scene.ask(
        "an unknown partition", fetch(scene, topic, {0: 1, 9: 0}, session_id=number, session_epoch=8)
    )
    await scene.ask("which stays", fetch(scene, topic, {}, session_id=number, session_epoch=9))
    await scene.ask("an unknown topic", fetch(scene, "nothing", {0: 0}, session_id=number, session_epoch=10))
    await scene.ask("which stays too", fetch(scene, topic, {}, session_id=number, session_epoch=11))
    await scene.ask("a session that is not there", fetch(scene, topic, {}, session_id=77, session_epoch=1))
    await scene.ask("end", fetch(scene, topic, {0: 1}, session_id=number, session_epoch=-1))
    await scene.ask("after its end", fetch(scene, topic, {}, session_id=number, session_epoch=12))
    await scene.ask("no session", fetch(scene, topic, {0: 0}, session_epoch=-1))
    await scene.ask("begin with nothing", fetch(scene, topic, {}, session_epoch=0))


async def lookups(scene: Scene) -> None:
    """ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""
    topic, version = await scene.topic("lookups", 2), scene.version("Produce")
    specials = [-1, -2, -3, -4, -5, -6, -7]
    for timestamp in specials:
        await scene.ask(f"empty at {timestamp}", list_offsets(scene, topic, [(0, timestamp)]))
    for start in (100, 300, 200):
        await scene.quietly(
            produce(scene, topic, {0: batch(b"a", b"b", b"c", timestamp=start, step=10)}), version
        )
    for timestamp in (*specials, 0, 100, 105, 120, 121, 300, 320, 321, 1 << 50):
        await scene.ask(f"at {timestamp}", list_offsets(scene, topic, [(0, timestamp)]))
    cases = {
        "two partitions": list_offsets(scene, topic, [(0, -1), (1, -1)]),
        "an unknown partition": list_offsets(scene, topic, [(0, -1), (5, -1)]),
        "twice the same": list_offsets(scene, topic, [(0, -1), (0, -2)]),
        "an unknown topic": list_offsets(scene, "nothing", [(0, -1)]),
        "nothing": list_offsets(scene, topic, []),
        "committed": list_offsets(scene, topic, [(0, -1)], isolation=1),
        "in the epoch": list_offsets(scene, topic, [(0, -1)], epoch=0),
        "in an epoch to come": list_offsets(scene, topic, [(0, -1)], epoch=5),
    }
    for label, request in cases.items():
        await scene.ask(f"list: {label}", request)
    for epoch in (-1, 0, 1, 5):
        await scene.ask(f"end of epoch {epoch}", leader_epoch(topic, 0, epoch))
    await scene.ask("end of an epoch of an empty log", leader_epoch(topic, 1, 0))
    await scene.ask("end of epoch, in another one", leader_epoch(topic, 0, 0, current=4))
    await scene.ask("end of epoch, unknown partition", leader_epoch(topic, 9, 0))
    await scene.ask("end of epoch, unknown topic", leader_epoch("nothing", 0, 0))
    if not scene.serves("DeleteRecords"):
        return
    for label, partition, offset in (
        ("to 4", 0, 4),
        ("to 2", 0, 2),
        ("to 99", 0, 99),
        ("to the end", 0, -1),
        ("to -2", 0, -2),
        ("of nothing", 1, 0),
        ("of an unknown partition", 9, 0),
    ):
        await scene.ask(f"delete {label}", delete_records(topic, partition, offset))
        for timestamp in (-1, -2, -3, -4, 0):
            await scene.ask(f"after {label}, {timestamp}", list_offsets(scene, topic, [(0, timestamp)]))
        await scene.ask(f"after {label}, from 0", fetch(scene, topic, {0: 0}))
        await scene.ask(f"after {label}, from 5", fetch(scene, topic, {0: 5}))
    await scene.ask("delete of an unknown topic", delete_records("nothing", 0, 0))
    await scene.ask("end of epoch 0 afterwards", leader_epoch(topic, 0, 0))


def leader_epoch(
    topic: str, partition: int, epoch: int, *, current: int = -1
) -> m.OffsetForLeaderEpochRequest:
    """OffsetForLeaderEpoch of a consumer."""
    cls = m.OffsetForLeaderEpochRequest
    asked = cls.OffsetForLeaderPartition(partition, current, epoch)
    return cls(replica_id=-1, topics=[cls.OffsetForLeaderTopic(topic, [asked])])


def delete_records(topic: str, partition: int, offset: int) -> m.DeleteRecordsRequest:
    """DeleteRecords of one partition."""
    cls = m.DeleteRecordsRequest
    return cls([cls.DeleteRecordsTopic(topic, [cls.DeleteRecordsPartition(partition, offset)])], 10_000)
