"""The directory of a cluster on disk: who uses it, what is kept in it, and the way back from it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from asyncgroup.broker.errors import StorageError
from asyncgroup.broker.storage.file_segments import FileStore
from asyncgroup.broker.storage.metadata_log import MetadataLog, MetadataRecord
from asyncgroup.broker.storage.open_files import OpenFiles
from asyncgroup.broker.storage.records import partition_record, topic_record, transaction_record
from asyncgroup.broker.topics import Partition, Topic
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.errors import ConfigError, UsageError

__all__ = ["DataDirectory"]

log = logging.getLogger(__name__)

FORMAT: Final = 1
"""Goes up when an older version could not read what is written."""

PRODUCER_ID_BLOCK: Final = 1000
"""Producer ids are reserved so many at a time, as in Kafka (`ProducerIdsBlock`); a restart skips what is left of them."""

_LONGEST_NAME: Final = 200
"""Letters of a topic's name in its directory's, which the file system allows 255."""


class DataDirectory:
    """Implements `Journal`. `path` is made if need be; `fsync` makes every write wait for the disk.

    Opening raises UsageError if another cluster uses the directory, ConfigError if it is none of ours, OSError.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self.files = OpenFiles(fsync=fsync)
        self.metadata = MetadataLog(self.files, path / "metadata")
        self._reserved = 0
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path)
        try:
            self.metadata.open()
            self._check_format()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<DataDirectory {self.path}>"

    def close(self) -> None:
        """Let go of the directory; what was written stays."""
        self.files.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _check_format(self) -> None:
        for record in self.metadata.of("cluster"):
            if record["format"] > FORMAT:
                raise ConfigError(
                    "data_dir", str(self.path), f"format {FORMAT} or older, not {record['format']}"
                )

    # -- the cluster -----------------------------------------------------------------------------------------

    def adopt_cluster(self, cluster_id: str) -> str:
        """The id of the cluster whose directory this is: that of before, or `cluster_id` if it is new."""
        for record in self.metadata.of("cluster"):
            return str(record["id"])
        self.metadata.put({"key": ["cluster"], "id": cluster_id, "format": FORMAT})
        return cluster_id

    def count_start(self) -> int:
        """One more cluster begins here; how many did so far, this one included."""
        before = sum(int(record["count"]) for record in self.metadata.of("starts"))
        self.metadata.put({"key": ["starts"], "count": before + 1})
        return before + 1

    @property
    def next_producer_id(self) -> int | None:
        """The first producer id that was never given out, None in a new directory."""
        return next((int(record["next"]) for record in self.metadata.of("producer_ids")), None)

    def producer_id_given(self, producer_id: int) -> None:
        """See `Journal`."""
        if producer_id >= self._reserved:
            with _storing("producer ids"):
                self.metadata.put({"key": ["producer_ids"], "next": producer_id + PRODUCER_ID_BLOCK})
            self._reserved = producer_id + PRODUCER_ID_BLOCK

    # -- topics ----------------------------------------------------------------------------------------------

    def topic_changed(self, topic: Topic) -> None:
        """See `Journal`."""
        with _storing(f"topic {topic.name}"):
            for partition in topic.partitions:
                if not isinstance(partition.log.store, FileStore):
                    store = self.store(topic, partition.index)
                    if store.directory.exists():
                        # Of a `__consumer_offsets` that could not be deleted whole; its id is always the same.
                        shutil.rmtree(store.directory)
                    partition.log.store = store
                    self.metadata.put(partition_record(partition))
            self.metadata.put(topic_record(topic))

    def topic_deleted(self, topic: Topic) -> None:
        """See `Journal`."""
        with _storing(f"topic {topic.name}"):
            self.metadata.delete("topic", topic.name)
        # All of it, whatever fails: what is said of these partitions must not count for those of a topic of the same name.
        indexes = [partition.index for partition in topic.partitions]
        keys = [(kind, topic.name, index) for kind in ("partition", "start") for index in indexes]
        self._happened(partial(self.metadata.forget, keys))
        for partition in topic.partitions:
            for segment in list(partition.log.segments):
                self.files.forget(
                    self._directory(topic) / str(partition.index) / f"{segment.base_offset:020}.log"
                )
        shutil.rmtree(self._directory(topic), ignore_errors=True)

    def partition_changed(self, partition: Partition) -> None:
        """See `Journal`."""
        self._happened(partial(self.metadata.put, partition_record(partition), happened=True))

    def store(self, topic: Topic, index: int) -> FileStore:
        """Where the segments of a partition are kept."""
        return FileStore(
            self.files, self._directory(topic) / str(index), partial(self._start_moved, topic.name, index)
        )

    def _start_moved(self, topic: str, index: int, start_offset: int) -> None:
        self.metadata.put({"key": ["start", topic, index], "offset": start_offset})

    def _directory(self, topic: Topic) -> Path:
        return self.path / "topics" / f"{topic.name[:_LONGEST_NAME]}.{topic.id.hex}"

    def remove_unknown(self, known: Iterable[Topic]) -> None:
        """Delete the directories of topics that were deleted, or not quite created, when the process was killed."""
        wanted = {self._directory(topic) for topic in known}
        for directory in (self.path / "topics").glob("*.*"):
            if directory not in wanted:
                log.info("%s belongs to no topic and is deleted", directory)
                shutil.rmtree(directory, ignore_errors=True)

    # -- transactions ----------------------------------------------------------------------------------------

    def transaction_changed(self, transaction: TransactionMetadata) -> None:
        """See `Journal`."""
        with _storing(f"transactional id {transaction.transactional_id!r}"):
            self.metadata.put(transaction_record(transaction))

    def transaction_deleted(self, transactional_id: str) -> None:
        """See `Journal`."""
        self._happened(partial(self.metadata.delete, "transaction", transactional_id, happened=True))

    # -- settings, users, quotas -----------------------------------------------------------------------------

    def resource_changed(
        self, kind: str, name: Sequence[str | int], values: Mapping[str, Any] | None
    ) -> None:
        """See `Journal`."""
        with _storing(f"{kind} {name}"):
            if values is None:
                self.metadata.delete(kind, *name)
            else:
                self.metadata.put({"key": [kind, *name], **values})

    @staticmethod
    def _happened(change: Callable[[], None]) -> None:
        """A change that has happened: the metadata log brings it along with the next one if the disk fails now."""
        try:
            change()
        except OSError as error:
            log.error("metadata could not be written, it will be with the next change: %s", error)

    def records(self, kind: str) -> list[MetadataRecord]:
        """What the metadata says of one kind."""
        return self.metadata.of(kind)


@contextmanager
def _storing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what}: {error}") from error


def _lock(path: Path) -> int:
    """Hold the directory; the system lets go of it when the process ends, however it does."""
    import fcntl  # not there on Windows, where clusters in memory work

    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise UsageError(
            f"data directory {path} is used by another cluster, in this or in another process"
        ) from error
    return descriptor
