"""Namespaces: which topics exist, how many partitions they have, their policies and schemas (Pulsar's metadata store).

Shared by all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from itertools import count as counter
from typing import Final

from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.schemas.schema_registry import SchemaRegistry
from asyncgroup.pulsar_broker.timing import Timing
from asyncgroup.pulsar_broker.topics.non_persistent_topic import NonPersistentTopic
from asyncgroup.pulsar_broker.topics.policies import Policies, TopicPolicies
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["Namespaces"]

_COPIES: Final = ("RETRY", "DLQ")
"""The ends of the names of topics for copies (`RetryMessageUtil`)."""


class Namespaces:
    """Topics by name. `default_partitions` is what a topic gets that is created by its use; 0: none."""

    def __init__(self, timing: Timing, *, creates_topics: bool = True, default_partitions: int = 0) -> None:
        self.policies: dict[str, Policies] = {
            name: Policies() for name in ("public/default", "pulsar/system")
        }
        """The policies of each namespace."""
        self.broker_policies = Policies()
        """Those of topics whose namespace has none."""
        self.schemas = SchemaRegistry(lambda: timing.now())  # noqa: PLW0108  the clock is set at the start
        self.creates_topics = creates_topics
        self.default_partitions = default_partitions
        self.topics: dict[TopicName, BrokerTopic] = {}
        """Topics without partitions, and partitions."""
        self.on_change: list[Callable[[TopicName, bool], None]] = []
        """Called with a topic, or partition, that was created (True) or deleted (False)."""
        self.may_create: Callable[[TopicName], bool] = lambda _: self.creates_topics
        """Whether a topic is created when a client uses it."""
        self.on_unknown_topic: Callable[[TopicName], object] = lambda _: None
        """Called when a client uses a topic that never existed and is not created."""
        self.on_policies: list[Callable[[], None]] = []
        """Called when policies were changed."""
        self._partitions: dict[TopicName, int] = {}
        self._known: set[TopicName] = set()  # all that exist or were deleted
        self._ledger_ids = counter(1)
        self._timing = timing

    def __repr__(self) -> str:
        return f"<Namespaces {sorted(self.names)}, {len(self.topics)} topics>"

    # --- namespaces -------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> KeysView[str]:
        """The namespaces."""
        return self.policies.keys()

    def add_namespace(self, name: str) -> None:
        """Create a namespace."""
        self.policies.setdefault(name, Policies())

    def remove_namespace(self, name: str) -> None:
        """Delete a namespace without topics."""
        self.check_namespace(name)
        del self.policies[name]

    def check_namespace(self, name: str) -> None:
        """Raise ServerFailure if a namespace does not exist."""
        if name not in self.policies:
            raise ServerFailure(ServerError.TOPIC_NOT_FOUND, f"Namespace not found: {name}")

    def check(self, name: TopicName) -> None:
        """Raise ServerFailure if the namespace of a topic does not exist."""
        self.check_namespace(name.namespace_name)

    def policies_of(self, name: TopicName) -> Policies:
        """Return the policies of a topic's namespace. Raises ServerFailure."""
        self.check(name)
        return self.policies[name.namespace_name]

    def policies_changed(self) -> None:
        """Policies of a namespace or topic were changed."""
        for topic in self.topics.values():
            topic.policies_changed()
        for call in self.on_policies:
            call()

    # --- topics -----------------------------------------------------------------------------------------------------------

    def partitioned_topics(self) -> list[TopicName]:
        """Return the names of the topics with partitions."""
        return list(self._partitions)

    def create(self, name: TopicName, partitions: int = 0) -> None:
        """Create a topic; 0 partitions is one without any. Raises ServerFailure."""
        self.check(name)
        if name in self.topics or name in self._partitions:
            raise ServerFailure(ServerError.NOT_ALLOWED_ERROR, f"This topic already exists: {name}")
        if partitions:
            self._partitions[name] = partitions
            self._known.add(name)
            for number in range(partitions):
                self._add(name.of_partition(number))
        else:
            self._add(name)

    def define(self, name: TopicName, partitions: int) -> None:
        """Give a topic a number of partitions, which are created when they are used."""
        self._partitions[name] = partitions

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

    def delete(self, name: TopicName) -> list[BrokerTopic]:
        """Delete a topic with its partitions, and return them. Raises ServerFailure."""
        count = self._partitions.pop(name, 0)
        names = [name.of_partition(number) for number in range(count)] if count else [name]
        found = [self.topics.pop(each) for each in names if each in self.topics]
        if not found:
            raise ServerFailure(ServerError.TOPIC_NOT_FOUND, f"Topic {name} not found")
        for topic in found:
            self._changed(topic.name, exists=False)
        return found

    def partitions_of(self, name: TopicName, *, creates: bool) -> int:
        """Return the number of partitions of a topic; one that does not exist is created with `creates`. Raises ServerFailure."""
        self.check(name)
        if name in self._partitions:
            return self._partitions[name]
        if name in self.topics:
            return 0
        if not (creates and self.may_create(name)):
            raise self._not_found(name, creates=creates)
        if self.default_partitions and name.partition < 0:
            self.create(name, self.default_partitions)
            return self.default_partitions
        return 0  # created by its first producer or consumer

    def topic(self, name: TopicName, *, creates: bool = True) -> BrokerTopic:
        """Return a topic or partition. Raises ServerFailure."""
        self.check(name)
        found = self.topics.get(name)
        if found is None:
            if not (creates and self.may_create(name)):
                raise self._not_found(name, creates=creates)
            found = self._add(name)
        return found

    def parts_of(self, name: TopicName) -> list[BrokerTopic]:
        """Return a topic without partitions, or all partitions of one. Raises ServerFailure."""
        count = self.partitions_of(name, creates=False)
        names = [name.of_partition(number) for number in range(count)] if count else [name]
        return [self.topic(each, creates=False) for each in names]

    def find(self, name: TopicName) -> list[BrokerTopic]:
        """Return a topic without partitions, or all partitions of one; empty if it does not exist."""
        count = self._partitions.get(name, 0)
        names = [name.of_partition(number) for number in range(count)] if count else [name]
        return [self.topics[each] for each in names if each in self.topics]

    def known_as(self, name: TopicName) -> TopicName:
        """Return the topic that a partition belongs to; a topic without partitions is its own."""
        return name.whole if name.whole in self._partitions else name

    def watch_unknown_topics(self, call: Callable[[str], object]) -> None:
        """Call `call(name)` when a client uses a topic that never existed and is not created, except topics for copies."""
        self.on_unknown_topic = lambda name: call(_short(name))
        self.may_create = lambda name: self.creates_topics or self._is_for_copies(name)

    def _is_for_copies(self, name: TopicName) -> bool:
        """Whether a name is that of a retry or dead letter topic of an existing topic, `topic-subscription-RETRY`.

        The subscription may not exist yet: a consumer subscribes to both topics at once.
        """
        origin, _, ending = name.whole.local_name.rpartition("-")
        return ending in _COPIES and any(
            topic.namespace_name == name.namespace_name and origin.startswith(f"{topic.whole.local_name}-")
            for topic in self.topics
        )

    def of_namespace(self, namespace: str) -> list[str]:
        """Return the names of all topics and partitions of a namespace."""
        return sorted(str(name) for name in self.topics if name.namespace_name == namespace)

    def _not_found(self, name: TopicName, *, creates: bool) -> ServerFailure:
        if creates and name not in self._known and name.whole not in self._known:
            self.on_unknown_topic(name.whole)
        return ServerFailure(ServerError.TOPIC_NOT_FOUND, f"Topic {name} not found")

    def _add(self, name: TopicName) -> BrokerTopic:
        self._known.add(name)
        kind = BrokerTopic if name.is_persistent else NonPersistentTopic
        policies = TopicPolicies(self.policies[name.namespace_name], self.broker_policies)
        found = self.topics[name] = kind(name, self._ledger_ids, self._timing, policies)
        found.policies_changed()
        self._changed(name, exists=True)
        return found

    def _changed(self, name: TopicName, *, exists: bool) -> None:
        for call in self.on_change:
            call(name, exists)


def _short(name: TopicName) -> str:
    """Return the name as a test writes it: without the namespace that is the default."""
    is_default = name.is_persistent and name.namespace_name == "public/default"
    return name.local_name if is_default else str(name)
