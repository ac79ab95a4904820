"""TopicProducers: the producers of a topic: names, access modes, and deduplication (Pulsar's `AbstractTopic`, `MessageDeduplication`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from asyncgroup.pulsar.wire.commands import CommandProducer
from asyncgroup.pulsar.wire.enums import ProducerAccessMode
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure

__all__ = ["ConnectedProducer", "TopicProducers"]


_MODES: Final = frozenset(map(int, ProducerAccessMode))


@dataclass(eq=False, slots=True)
class ConnectedProducer:
    """A producer at a topic."""

    command: CommandProducer
    name: str
    connection: object
    fence: Callable[[], None]
    """Closes it, as another one takes its place."""
    is_ready: bool = False

    @property
    def client_version(self) -> str:
        """The version text of its client."""
        return str(getattr(self.connection, "client_version", ""))

    @property
    def mode(self) -> ProducerAccessMode:
        """How it shares the topic; a number that is no mode counts as left out, as an unknown enum does in Pulsar."""
        number = self.command.producer_access_mode
        return ProducerAccessMode(number) if number in _MODES else ProducerAccessMode.SHARED


class TopicProducers:
    """The producers of one topic. `epoch` changes with each exclusive one, and fences those before it (PIP-68)."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self._by_name: dict[str, ConnectedProducer] = {}
        self._exclusive: ConnectedProducer | None = None
        self._waiting: deque[tuple[ConnectedProducer, Callable[[], None]]] = deque()
        self._highest: dict[str, int] = {}  # the sequence ids that are stored, while the topic deduplicates

    def __repr__(self) -> str:
        return f"<TopicProducers {sorted(self._by_name)}, epoch {self.epoch}>"

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[ConnectedProducer]:
        return iter(self._by_name.values())

    @property
    def everyone(self) -> list[ConnectedProducer]:
        """The producers, and those that wait for their turn."""
        return [*self._by_name.values(), *(each for each, _ in self._waiting)]

    def add(self, producer: ConnectedProducer, on_ready: Callable[[], None]) -> bool:
        """Add a producer. Return whether it may send now; otherwise `on_ready` is called when it may. Raises ServerFailure."""
        self._check_name(producer)
        match producer.mode:
            case ProducerAccessMode.SHARED:
                if self._exclusive is not None:
                    raise ServerFailure(
                        ServerError.PRODUCER_BUSY,
                        f"Topic has an existing exclusive producer: {self._exclusive.name}",
                    )
            case ProducerAccessMode.EXCLUSIVE:
                if self._by_name:
                    raise ServerFailure(ServerError.PRODUCER_FENCED, "Topic has existing producers")
                self._check_epoch(producer)
                self._take(producer)
            case ProducerAccessMode.WAIT_FOR_EXCLUSIVE:
                if self._by_name:
                    self._waiting.append((producer, on_ready))
                    return False
                self._check_epoch(producer)
                self._take(producer)
            case ProducerAccessMode.EXCLUSIVE_WITH_FENCING:
                self._check_epoch(producer)
                for each in list(self._by_name.values()):
                    self.remove(each, starts_next=False)
                    each.fence()
                self._take(producer)
        self._by_name[producer.name] = producer
        producer.is_ready = True
        return True

    def _check_epoch(self, producer: ConnectedProducer) -> None:
        given = producer.command.topic_epoch
        if given is not None and self.epoch is not None and given < self.epoch:
            raise ServerFailure(
                ServerError.PRODUCER_FENCED,
                f"Topic has a newer epoch: {self.epoch}, and the producer's is {given}",
            )

    def _check_name(self, producer: ConnectedProducer) -> None:
        other = self._by_name.get(producer.name)
        if other is None:
            return
        same = (
            other.connection is producer.connection
            and other.command.producer_id == producer.command.producer_id
        )
        if same and producer.command.epoch > other.command.epoch:
            self.remove(other)
            return
        raise ServerFailure(
            ServerError.PRODUCER_BUSY, f"Producer with name '{producer.name}' is already connected to topic"
        )

    def _take(self, producer: ConnectedProducer) -> None:
        self._exclusive = producer
        if self.epoch is None:
            self.epoch = 0
        elif producer.command.topic_epoch != self.epoch:  # else it comes back
            self.epoch += 1

    def remove(self, producer: ConnectedProducer, *, starts_next: bool = True) -> None:
        """A producer has left; one that waits has its turn if the topic has no other."""
        self._waiting = deque(each for each in self._waiting if each[0] is not producer)
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        producer.is_ready = False
        if starts_next and self._waiting and not self._by_name:
            following, on_ready = self._waiting.popleft()
            self._take(following)
            self._by_name[following.name] = following
            following.is_ready = True
            on_ready()

    # --- deduplication ----------------------------------------------------------------------------------------------------

    def last_sequence_id(self, name: str) -> int:
        """Return the highest sequence id that is stored of a producer; -1 for none."""
        return self._highest.get(name, -1)

    def forget_sequence_ids(self) -> None:
        """Know nothing of what is stored: the topic does not deduplicate."""
        self._highest.clear()

    def is_duplicate(self, name: str, sequence_id: int, highest: int) -> bool:
        """Whether messages were stored before; otherwise they count as stored from now on."""
        last = max(sequence_id, highest)
        if sequence_id <= self._highest.get(name, -1):
            return True
        self._highest[name] = last
        return False
