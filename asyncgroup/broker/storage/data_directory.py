"""The data directory of a cluster on disk: its lock, the journal of metadata changes, the stores of logs."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.log.file_segments import FileStore
from asyncgroup.broker.log.open_files import OpenFiles
from asyncgroup.broker.metadata.journal import Journal
from asyncgroup.broker.metadata.metadata_log import MetadataLog, MetadataRecord
from asyncgroup.broker.metadata.topics import Partition, Topic
from asyncgroup.errors import ConfigError, UsageError

__all__ = ["DataDirectory", "partition_record", "read_topic", "topic_record"]

log = logging.getLogger(__name__)

FORMAT: Final = 1
"""Version of the directory's format; increased when older versions could not read it."""

PRODUCER_ID_BLOCK: Final = 1000
"""Number of producer ids reserved at once, as in Kafka (`ProducerIdsBlock`); a restart skips the unused ones."""

_MAX_NAME_CHARS: Final = 200
"""Characters of a topic's name in its directory's name, which file systems limit to 255 bytes."""


class DataDirectory(Journal):
    """Implements `Journal`. `path` is created if necessary; `fsync` makes every write wait for the disk.

    Raise UsageError if another cluster uses the directory, ConfigError if its format is newer, KafkaStorageError if its
    metadata is damaged, OSError.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self.files = OpenFiles(fsync=fsync)
        self.metadata = MetadataLog(self.files, path / "metadata")
        self._reserved = 0  # producer ids below this are reserved in the metadata log
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
        """Close all files and release the lock."""
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
        """Return the stored cluster id; in a new directory, store `cluster_id` and return it."""
        for record in self.metadata.of("cluster"):
            return str(record["id"])
        self.metadata.put({"key": ["cluster"], "id": cluster_id, "format": FORMAT})
        return cluster_id

    def count_start(self) -> int:
        """Count a start of the cluster; return the number of starts, including this one."""
        before = sum(int(record["count"]) for record in self.metadata.of("starts"))
        self.metadata.put({"key": ["starts"], "count": before + 1})
        return before + 1

    @property
    def next_producer_id(self) -> int | None:
        """The first producer id that was never reserved, None in a new directory."""
        return next((int(record["next"]) for record in self.metadata.of("producer_ids")), None)

    def producer_id_allocated(self, producer_id: int) -> None:
        """See `Journal`."""
        if producer_id >= self._reserved:
            with _storage_errors("producer ids"):
                self.metadata.put({"key": ["producer_ids"], "next": producer_id + PRODUCER_ID_BLOCK})
            self._reserved = producer_id + PRODUCER_ID_BLOCK

    # -- topics ----------------------------------------------------------------------------------------------

    def topic_changed(self, topic: Topic) -> None:
        """See `Journal`."""
        with _storage_errors(f"topic {topic.name}"):
            for partition in topic.partitions:
                if not isinstance(partition.log.segments.store, FileStore):
                    store = self.store(topic, partition.index)
                    if store.directory.exists():
                        # Left over from a `__consumer_offsets` not completely deleted: its id never changes.
                        shutil.rmtree(store.directory)
                    partition.log.segments.store = store
                    self.metadata.put(partition_record(partition))
            self.metadata.put(topic_record(topic))

    def topic_deleted(self, topic: Topic) -> None:
        """See `Journal`."""
        with _storage_errors(f"topic {topic.name}"):
            self.metadata.delete("topic", topic.name)
        # All keys, even after a failure: they must not apply to the partitions of a later topic with the same name.
        indexes = [partition.index for partition in topic.partitions]
        keys = [(kind, topic.name, index) for kind in ("partition", "start") for index in indexes]
        self._log_failure(partial(self.metadata.delete_many, keys))
        self.files.close_below(self._directory(topic))
        shutil.rmtree(self._directory(topic), ignore_errors=True)

    def partition_changed(self, partition: Partition) -> None:
        """See `Journal`."""
        self._log_failure(partial(self.metadata.put, partition_record(partition), already_applied=True))

    def store(self, topic: Topic, index: int) -> FileStore:
        """Return the store of a partition's segments."""
        return FileStore(
            self.files,
            self._directory(topic) / str(index),
            partial(self._save_start_offset, topic.name, index),
        )

    def _save_start_offset(self, topic: str, index: int, start_offset: int) -> None:
        self.metadata.put({"key": ["start", topic, index], "offset": start_offset})

    def _directory(self, topic: Topic) -> Path:
        return self.path / "topics" / f"{topic.name[:_MAX_NAME_CHARS]}.{topic.id.hex}"

    def remove_unknown(self, known: Iterable[Topic]) -> None:
        """Delete directories left by a process that was killed while deleting or creating a topic."""
        wanted = {self._directory(topic) for topic in known}
        for directory in (self.path / "topics").glob("*.*"):
            if directory not in wanted:
                log.info("deleting %s, which belongs to no topic", directory)
                shutil.rmtree(directory, ignore_errors=True)

    # -- configs, users, quotas, transactional ids -----------------------------------------------------------

    def resource_changed(
        self, kind: str, name: Sequence[str | int], values: Mapping[str, Any] | None
    ) -> None:
        """See `Journal`."""
        with _storage_errors(" ".join([kind, *map(str, name)])):
            if values is None:
                self.metadata.delete(kind, *name)
            else:
                self.metadata.put({"key": [kind, *name], **values})

    def resource_expired(self, kind: str, name: Sequence[str | int]) -> None:
        """See `Journal`."""
        self._log_failure(partial(self.metadata.delete, kind, *name, already_applied=True))

    @staticmethod
    def _log_failure(change: Callable[[], None]) -> None:
        """Write a change that has already taken effect; an OSError is logged.

        The metadata log then writes the change together with the next one.
        """
        try:
            change()
        except OSError as error:
            log.error(
                "a metadata change could not be written; it will be written with the next one: %s", error
            )

    def records(self, kind: str) -> list[MetadataRecord]:
        """Return the metadata records of one kind."""
        return self.metadata.of(kind)


@contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KafkaStorageError(f"{what}: {error}") from error


def _lock(path: Path) -> int:
    """Lock the directory and return the lock's descriptor; the system releases the lock when the process ends."""
    import fcntl  # not available on Windows, where only clusters in memory work

    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UsageError(
            f"data directory {path} is in use by another cluster, in this or another process"
        ) from error
    except OSError as error:  # a file system without locks
        os.close(descriptor)
        raise OSError(error.errno, error.strerror, str(path / "lock")) from error
    return descriptor


def topic_record(topic: Topic) -> MetadataRecord:
    """Return the record of a topic: its id, configs and number of partitions."""
    return {
        "key": ["topic", topic.name],
        "id": topic.id.hex,
        "configs": dict(topic.configs),
        "partitions": len(topic.partitions),
    }


def read_topic(record: MetadataRecord) -> Topic:
    """Return the topic of a record, without partitions."""
    return Topic(str(record["key"][1]), UUID(hex=record["id"]), record["configs"])


def partition_record(partition: Partition) -> MetadataRecord:
    """Return the record of a partition: its replicas, leader, leader epoch and start offsets of the leader epochs."""
    return {
        "key": ["partition", partition.topic, partition.index],
        "replicas": list(partition.replicas),
        "leader": partition.leader,
        "epoch": partition.leader_epoch,
        "epochs": [list(entry) for entry in partition.log.epochs],
    }
