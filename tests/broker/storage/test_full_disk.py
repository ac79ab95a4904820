"""A full disk, while a cluster runs and when it starts: errors and the log name the file and the cause."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster, Refused
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError
from tests.broker.batches import batch
from tests.broker.client import connect
from tests.broker.requests import put

FULL = "[Errno 28] No space left on device: '{}'"


def full(*_: Any) -> int:
    """Fail as the system does: with a descriptor it does not know the file's name."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """One line for each file, until it can be written again, however often a producer tries."""
    caplog.set_level(logging.INFO, "asyncgroup.broker.log.open_files")
    async with EmbeddedCluster(data_dir=tmp_path, topics="t") as cluster, connect(cluster) as client:
        (result,) = await put(client, cluster, batch(b"a"))
        assert not result.error_code
        (segment,) = tmp_path.glob("topics/t.*/0/*.log")
        (metadata,) = tmp_path.glob("metadata/*.metadata")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", full)
            for _ in range(3):
                (result,) = await put(client, cluster, batch(b"b"))
                assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert [record.value for record in cluster.records("t")] == [b"a"]
            with pytest.raises(Refused) as caught:
                cluster.create_topic("u")
            assert str(caught.value) == f"topic u: {FULL.format(metadata)}"
            with pytest.raises(Refused) as caught:
                cluster.produce("t", b"b", timestamp=1000)
            assert str(caught.value) == f"t-0: {FULL.format(segment)}"
        assert [record.getMessage() for record in caplog.records] == [
            f"data directory, write: {FULL.format(path)}" for path in (segment, metadata)
        ]
        caplog.clear()
        for _ in range(2):
            (result,) = await put(client, cluster, batch(b"b"))
            assert not result.error_code
        monkeypatch.setattr(os, "pwritev", full)
        (result,) = await put(client, cluster, batch(b"b"))
        assert [record.getMessage() for record in caplog.records] == [
            f"data directory, write: {segment} succeeds again",
            f"data directory, write: {FULL.format(segment)}",
        ]


@pytest.mark.parametrize("stored", [False, True])
async def test_at_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stored: bool
):
    if stored:
        async with EmbeddedCluster(data_dir=tmp_path, topics="t"):
            pass
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(OSError, match="No space left on device") as caught:
            async with EmbeddedCluster(data_dir=tmp_path, topics="t"):
                pass
    file = Path(caught.value.filename)
    assert caught.value.errno == errno.ENOSPC
    assert file.parent == tmp_path / "metadata"
    assert FULL.format(file) in caplog.text
    async with EmbeddedCluster(data_dir=tmp_path, topics="t") as cluster:
        assert cluster.topics == ["t"]


async def test_the_system_says_why_a_write_was_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Such as a quota."""
    write, calls = os.pwritev, []

    def short(descriptor: int, parts: list[Any], position: int) -> int:
        calls.append(position)
        if len(calls) > 1:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return write(descriptor, [b"".join(parts)[:20]], position)

    async with EmbeddedCluster(data_dir=tmp_path, topics="t") as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", short)
            with pytest.raises(Refused, match=r"t-0: .*quota exceeded: '.*0\.log'"):
                cluster.produce("t", b"a")
        cluster.produce("t", b"b")
        assert [record.value for record in cluster.records("t")] == [b"b"]


async def test_a_lock_that_fails_for_another_reason_is_not_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import fcntl

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with pytest.raises(OSError, match=f"No locks available: '{tmp_path}/lock'"):
            async with EmbeddedCluster(data_dir=tmp_path):
                pass
    async with EmbeddedCluster(data_dir=tmp_path):
        with pytest.raises(UsageError, match="in use by another cluster"):
            async with EmbeddedCluster(data_dir=tmp_path):
                pass
