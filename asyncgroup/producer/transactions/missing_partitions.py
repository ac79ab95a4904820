"""MissingPartitions: when a transaction stops waiting for partitions that do not exist any more."""

from __future__ import annotations

from collections.abc import Mapping

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["MissingPartitions"]


class MissingPartitions:
    """Looks up the partitions that the coordinator of one request does not know.

    UNKNOWN_TOPIC_OR_PARTITION is retriable: a coordinator may know a new topic late. A topic that was deleted never
    comes back as the same one, and the whole transaction would wait for it until `delivery_timeout`, as in Java
    (`TransactionManager.TxnOffsetCommitHandler`). So it counts as missing once the metadata of `metadata_retry_max` more
    lookups in a row lacks it as well.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._lookups = 0

    def __repr__(self) -> str:
        return f"<MissingPartitions: {self._lookups} lookups in a row>"

    async def found_in(self, codes: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions of a response with these error codes that do not exist; the first times none."""
        unknown = [tp for tp, code in codes.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        missing = await self._missing(unknown) if unknown else []
        if not missing:
            self._lookups = 0
            return []
        self._lookups += 1
        return missing if self._lookups > self._cluster.config.metadata_retry_max else []

    async def _missing(self, unknown: list[TopicPartition]) -> list[TopicPartition]:
        """Return those that fresh metadata lacks; none if it cannot be looked up.

        The lookup creates no topic: the offsets of the deleted one would be committed for the new one.
        """
        try:
            found = await self._cluster.existing_topics({tp.topic for tp in unknown})
        except AsyncGroupError:
            return []

        def exists(tp: TopicPartition) -> bool:
            topic = found.get(tp.topic)
            return topic is not None and (bool(topic.error_code) or tp.partition in topic.partitions)

        return [tp for tp in unknown if not exists(tp)]
