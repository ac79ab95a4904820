"""Kafka's own `kafka-dump-log` reads the embedded broker's files: appended and compacted segments."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.java import require_java
from asyncgroup.testing.apache_kafka.jars import kafka_jars
from asyncgroup.wire.records import CODECS, BatchBuilder
from tests.broker.batches import append, sequenced
from tests.broker.internals import log_of
from tests.broker.transactional import Writer

NOW, RETENTION = 10_000, 1000


async def write(directory: Path) -> None:
    """Write a topic with one compacted segment and one active segment."""
    async with EmbeddedCluster(data_dir=directory) as cluster:
        cluster.create_topic("t")
        log = log_of(cluster, "t", 0)
        for codec in CODECS:
            builder = BatchBuilder(codec)
            for number in range(6):
                value = None if number == 5 else b"v" * 100 * number
                builder.append(5000 + number, b"%s-%d" % (codec.encode(), number // 2), value, [("h", None)])
            append(log, builder.build(), 0)
        append(log, sequenced(0), 0)
        writer = Writer(log, 1)
        writer.write(b"committed")
        writer.commit()
        writer.write(b"aborted")
        writer.abort()
        log.compact(NOW, RETENTION)
        append(log, sequenced(1, 3), 0)


def dump(files: list[Path]) -> str:
    java = require_java("run Kafka's own tools")
    command = [java.executable, "-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.DumpLogSegments"]
    command += ["--deep-iteration", "--files", ",".join(map(str, files))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.usefixtures("kafka_at_hand")
def test_kafka_reads_our_files(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path))
    compacted, active = sorted(tmp_path.glob("topics/t.*/0/*.log"))
    text = dump([compacted, active])
    batches = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+)", text, re.MULTILINE)
    assert len(batches) == len(CODECS) + 1 + 4 + 1
    assert text.count("isvalid: true") == len(batches)
    for number, codec in enumerate(CODECS):
        assert batches[number] == (str(6 * number), str(6 * number + 5), "3")
        assert f"compresscodec: {codec} " in text
    assert text.count(f"deleteHorizonMs: OptionalLong[{NOW + RETENTION}]") == len(CODECS)
    assert "endTxnMarker: COMMIT" in text
    assert "endTxnMarker: ABORT" in text
    assert batches[-1] == ("35", "37", "3")
