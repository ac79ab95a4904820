"""Namespaces: which topics exist, and how many partitions they have (Pulsar's metadata store). Shared by all nodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as counter

from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.subscription import Timing
from asyncgroup.pulsar_broker.topic import BrokerTopic

__all__ = ["Namespaces"]


class Namespaces:
    """Topics by name. `default_partitions` is what a topic gets that is created by its use; 0: none."""

    def __init__(self, timing: Timing, *, creates_topics: bool = True, default_partitions: int = 0) -> None:
        self.names = {"public/default", "pulsar/system"}
        """The namespaces."""
        self.creates_topics = creates_topics
        self.default_partitions = default_partitions
        self.topics: dict[TopicName, BrokerTopic] = {}
        """Topics without partitions, and partitions."""
        self.on_change: list[Callable[[], None]] = []
        """Called when a topic was created or deleted."""
        self._partitions: dict[TopicName, int] = {}
        self._ledger_ids = counter(1)
        self._timing = timing

    def __repr__(self) -> str:
        return f"<Namespaces {sorted(self.names)}, {len(self.topics)} topics>"

    def check(self, name: TopicName) -> None:
        """Raise ServerFailure if the namespace of a topic does not exist."""
        if name.namespace_name not in self.names:
            raise ServerFailure(ServerError.TOPIC_NOT_FOUND, f"Namespace not found: {name.namespace_name}")

    def create(self, name: TopicName, partitions: int = 0) -> None:
        """Create a topic; 0 partitions is one without any. Raises ServerFailure."""
        self.check(name)
        if name in self.topics or name in self._partitions:
            raise ServerFailure(ServerError.NOT_ALLOWED_ERROR, f"This topic already exists: {name}")
        if partitions:
            self._partitions[name] = partitions
            for number in range(partitions):
                self._add(name.of_partition(number))
        else:
            self._add(name)
        self._changed()

    def add_partitions(self, name: TopicName, partitions: int) -> None:
        """Increase the number of partitions. Raises ServerFailure."""
        known = self._partitions.get(name, 0)
        if not known or partitions <= known:
            raise ServerFailure(
                ServerError.NOT_ALLOWED_ERROR, f"{name} has {known} partitions, and cannot have {partitions}"
            )
        self._partitions[name] = partitions
        for number in range(known, partitions):
            self._add(name.of_partition(number))
        self._changed()

    def delete(self, name: TopicName) -> list[BrokerTopic]:
        """Delete a topic with its partitions, and return them. Raises ServerFailure."""
        count = self._partitions.pop(name, 0)
        names = [name.of_partition(number) for number in range(count)] if count else [name]
        found = [self.topics.pop(each) for each in names if each in self.topics]
        if not found:
            raise ServerFailure(ServerError.TOPIC_NOT_FOUND, f"Topic {name} not found")
        self._changed()
        return found

    def partitions_of(self, name: TopicName, *, creates: bool) -> int:
        """Return the number of partitions of a topic; one that does not exist is created with `creates`. Raises ServerFailure."""
        self.check(name)
        if name in self._partitions:
            return self._partitions[name]
        if name in self.topics:
            return 0
        if not (creates and self.creates_topics):
            raise ServerFailure(ServerError.TOPIC_NOT_FOUND, f"Topic {name} not found")
        if self.default_partitions and name.partition < 0:
            self.create(name, self.default_partitions)
            return self.default_partitions
        return 0  # created by its first producer or consumer

    def topic(self, name: TopicName, *, creates: bool = True) -> BrokerTopic:
        """Return a topic or partition. Raises ServerFailure."""
        self.check(name)
        found = self.topics.get(name)
        if found is None:
            if not (creates and self.creates_topics):
                raise ServerFailure(ServerError.TOPIC_NOT_FOUND, f"Topic {name} not found")
            found = self._add(name)
            self._changed()
        return found

    def parts_of(self, name: TopicName) -> list[BrokerTopic]:
        """Return a topic without partitions, or all partitions of one. Raises ServerFailure."""
        count = self.partitions_of(name, creates=False)
        names = [name.of_partition(number) for number in range(count)] if count else [name]
        return [self.topic(each, creates=False) for each in names]

    def of_namespace(self, namespace: str) -> list[str]:
        """Return the names of all topics and partitions of a namespace."""
        return sorted(str(name) for name in self.topics if name.namespace_name == namespace)

    def _add(self, name: TopicName) -> BrokerTopic:
        found = self.topics[name] = BrokerTopic(name, self._ledger_ids, self._timing)
        return found

    def _changed(self) -> None:
        for call in self.on_change:
            call()
