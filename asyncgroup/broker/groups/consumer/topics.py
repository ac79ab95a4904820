"""What a consumer group sees of the cluster's topics (Kafka's `CoordinatorMetadataImage`)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol
from uuid import UUID

__all__ = ["NO_TOPICS", "FixedTopics", "TopicFacts", "TopicsImage", "metadata_hash", "partition_counts"]


class TopicFacts(NamedTuple):
    """A topic's id and its number of partitions."""

    id: UUID
    partitions: int


class TopicsImage(Protocol):
    """The cluster's topics at present."""

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""

    def find(self, name: str) -> TopicFacts | None:
        """Return a topic by its name, None if it does not exist."""

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic, None if it does not exist."""


class FixedTopics:
    """Topics that do not change, by name."""

    def __init__(self, topics: Mapping[str, TopicFacts]) -> None:
        self._topics = dict(topics)

    def __repr__(self) -> str:
        return f"<FixedTopics {len(self._topics)}>"

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""
        return self._topics

    def find(self, name: str) -> TopicFacts | None:
        """Return a topic by its name, None if it does not exist."""
        return self._topics.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic, None if it does not exist."""
        return next((name for name, facts in self._topics.items() if facts.id == topic_id), None)


NO_TOPICS = FixedTopics({})
"""An image without topics."""


def partition_counts(topics: TopicsImage, names: Iterable[str]) -> dict[UUID, int]:
    """Return the number of partitions of those topics that exist, by topic id."""
    found = (topics.find(name) for name in names)
    return {facts.id: facts.partitions for facts in found if facts is not None}


def metadata_hash(topics: TopicsImage, names: Collection[str]) -> int:
    """Return a number of 64 bits that changes with the ids and partitions of these topics; 0 if none exists (KIP-1101).

    Kafka computes another number; it is compared only with numbers from the same broker.
    """
    digest = hashlib.blake2b(digest_size=8)
    counts = partition_counts(topics, names)
    for topic_id, count in sorted(counts.items()):
        digest.update(topic_id.bytes + count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if counts else 0
