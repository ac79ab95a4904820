"""More stories about records: topic settings, restricted topics, fetches of several partitions."""

from __future__ import annotations

import struct
from typing import Final

from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import batch, with_crc
from tests.interop.parity.asks import fetch, produce
from tests.interop.parity.records import ATTRIBUTES
from tests.interop.parity.scene import Scene

__all__ = ["records_without_keys", "restricted_topics", "topic_codecs", "topic_timestamps"]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
FAR: Final = 1 << 42
"""A timestamp in the far future, in ms."""


async def topic_codecs(scene: Scene) -> None:
    """`compression.type`: records are stored with the codec of the topic."""
    for wanted in ("uncompressed", "gzip", "zstd"):
        topic = await scene.topic(wanted, 1, compression_type=wanted)
        for codec in CODECS:
            data = batch(b"x" * 100, b"y" * 100, codec=codec)
            await scene.ask(f"{wanted}: {codec}", produce(scene, topic, {0: data}))
        await scene.ask(f"{wanted}: all of it", fetch(scene, topic, {0: 0}))
    topic = await scene.topic("levels", 1, compression_type="gzip", compression_gzip_level="9")
    await scene.ask("a level", produce(scene, topic, {0: batch(b"x" * 1000)}))
    small = await scene.topic("small", 1, max_message_bytes="300")
    for codec in ("none", "gzip"):
        await scene.ask(f"small: {codec}", produce(scene, small, {0: batch(b"x" * 2000, codec=codec)}))
    await scene.ask("small: all of it", fetch(scene, small, {0: 0}))


async def topic_timestamps(scene: Scene) -> None:
    """`message.timestamp.*`: CreateTime or LogAppendTime, and limits for CreateTime."""
    stamped = await scene.topic("stamped", 1, message_timestamp_type="LogAppendTime")
    said = with_crc(batch(b"a"), ATTRIBUTES, struct.pack(">h", 8))
    for label, data in {
        "without a time": batch(b"a", timestamp=-1),
        "of the future": batch(b"a", b"b", timestamp=FAR),
        "stamped already": said,
        "compressed": batch(b"a", b"b", codec="gzip"),
    }.items():
        await scene.ask(f"stamped: {label}", produce(scene, stamped, {0: data}))
    await scene.ask("stamped: all of it", fetch(scene, stamped, {0: 0}))
    for limit in ("before", "after"):
        configs = {f"message_timestamp_{limit}_max_ms": "1000"}
        topic = await scene.topic(limit, 1, **configs)
        cases = {
            "old": batch(b"a", b"b", timestamp=5),
            "to come": batch(b"a", b"b", timestamp=FAR),
            "both": batch(b"a", b"b", b"c", timestamp=5, step=FAR),
            "no time": batch(b"a", timestamp=-1),
            "old, compressed": batch(b"a", timestamp=5, codec="zstd"),
        }
        for label, data in cases.items():
            await scene.ask(f"{limit}: {label}", produce(scene, topic, {0: data}))
        await scene.ask(f"{limit}: all of it", fetch(scene, topic, {0: 0}))


async def records_without_keys(scene: Scene) -> None:
    """A compacted topic rejects records without keys, and names them."""
    topic = await scene.topic("keys", 2, cleanup_policy="compact,delete")
    for label, keys in {
        "one of three": (b"k", None, b"k"),
        "all": (None, None, None, None, None, None),
        "an empty one": (b"", b"k"),
    }.items():
        for codec in ("none", "gzip"):
            data = without_keys(*keys, codec=codec)
            await scene.ask(f"{label}, {codec}", produce(scene, topic, {0: data}))
    good_and_bad = produce(scene, topic, {0: without_keys(None), 1: batch(b"v")})
    await scene.ask("one partition of two", good_and_bad)
    await scene.ask("all of it", fetch(scene, topic, {0: 0, 1: 0}))


def without_keys(*keys: bytes | None, codec: str = "none") -> bytes:
    """Return a batch with these keys."""
    builder = BatchBuilder(codec, 1 << 20)
    for key in keys:
        assert builder.append(1000, key, b"v")
    return builder.build()


async def restricted_topics(scene: Scene) -> None:
    """Topics with too few in-sync replicas and internal topics, with all acks values."""
    scarce = await scene.topic("scarce", 1, min_insync_replicas="2")
    for acks in (-1, 1):
        await scene.ask(f"too few replicas, acks={acks}", produce(scene, scarce, {0: batch(b"x")}, acks=acks))
    await scene.ask("what is in it", fetch(scene, scarce, {0: 0}))
    await scene.group("any")  # so that there is a topic for offsets
    if scene.version("Produce") < 13:
        await scene.ask("offsets", produce(scene, "__consumer_offsets", {0: batch(b"x")}))
        await scene.ask("offsets, acks=1", produce(scene, "__consumer_offsets", {0: batch(b"x")}, acks=1))
