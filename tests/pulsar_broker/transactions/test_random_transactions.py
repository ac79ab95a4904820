"""Random programs of transactions on a topic: what is readable, which acknowledgements are refused, and what comes again."""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.pulsar.wire.ack_set import bits_of, full_set, set_of, words_of
from asyncgroup.pulsar.wire.commands import Command, CommandMessage, CommandSubscribe, MessageIdData
from asyncgroup.pulsar.wire.enums import AckType, SubType
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.log.topic_log import TransactionId
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer
from asyncgroup.pulsar_broker.timing import Timing
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from tests.pulsar_broker.support import metadata

LOW = -1
"""The low water mark of a coordinator that has its first transaction still."""


class Scene:
    """A topic with a subscription, and a model of both."""

    def __init__(self, kind: SubType) -> None:
        timing = Timing(lambda: 0, lambda _time, _call: None, lambda call: call())
        self.kind = kind
        self.topic = BrokerTopic(TopicName.parse("t"), count(1), timing)
        command = CommandSubscribe(
            topic="t", subscription="s", sub_type=kind, consumer_id=0, request_id=0, initial_position=1
        )
        self.subscription = self.topic.subscribe(command)
        self.consumer = SubscribedConsumer(command, "c", -1, self._push)
        self.subscription.add(self.consumer)
        self.subscription.flow(self.consumer, 1 << 20)
        # the model: the messages of entries as bits
        self.owner: dict[int, TransactionId | None] = {}
        self.sizes: dict[int, int] = {}
        self.acked: defaultdict[int, int] = defaultdict(int)
        self.pending: defaultdict[TransactionId, defaultdict[int, int]] = defaultdict(
            lambda: defaultdict(int)
        )
        self.open: list[TransactionId] = []
        self.aborted: set[TransactionId] = set()
        self.numbers = count()
        self.seen: list[int] = []  # in the order of first deliveries
        self.due: set[int] = set()  # those that have to come again

    def free(self, index: int) -> int:
        """Return the messages of an entry that nothing has acknowledged."""
        taken = self.acked[index]
        for entries in self.pending.values():
            taken |= entries.get(index, 0)
        return full_set(self.sizes[index]) & ~taken

    def _push(self, command: Command, _: bytes) -> None:
        assert isinstance(command, CommandMessage)
        entry = self.topic.log.find((command.message_id.ledger_id, command.message_id.entry_id))
        assert entry is not None
        assert entry.index in self.owner, "a marker was delivered"
        shown = bits_of(command.ack_set) if command.ack_set else full_set(self.sizes[entry.index])
        assert shown == self.free(entry.index)
        if entry.index not in self.seen:
            self.seen.append(entry.index)
        self.due.discard(entry.index)

    # --- steps ------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.open.append((0, next(self.numbers)))

    def send(self, transaction: TransactionId | None, size: int) -> None:
        index = self.topic.log.end
        self.owner[index], self.sizes[index] = transaction, size
        self.topic.append(metadata(num_messages_in_batch=size if size > 1 else None), b"", transaction)

    def end(self, transaction: TransactionId, *, commits: bool) -> None:
        self.open.remove(transaction)
        pending = self.pending.pop(transaction, {})
        if commits:
            for index, bits in pending.items():
                self.acked[index] |= bits
        else:
            self.aborted.add(transaction)
            self.due = {index for index in pending if self.free(index)}
        self.subscription.end_transaction(transaction, LOW, commits=commits)
        self.topic.end_transaction(transaction, LOW, commits=commits)
        assert not self.due

    def ack(self, transaction: TransactionId | None, index: int, message: int) -> None:
        size = self.sizes[index]
        bits = 1 << message % size
        entry = self.topic.log[index]
        given = MessageIdData(
            ledger_id=entry.position[0],
            entry_id=entry.position[1],
            ack_set=words_of(set_of(set(range(size)) - {message % size}, size)),
            batch_size=size,
        )
        if transaction is None:
            self.acked[index] |= bits
            self.subscription.ack(AckType.INDIVIDUAL, [given])
            return
        if bits & self.free(index):
            self.subscription.ack_in_transaction(transaction, AckType.INDIVIDUAL, [given])
            self.pending[transaction][index] |= bits
        else:
            with pytest.raises(ServerFailure, match="TransactionConflict"):
                self.subscription.ack_in_transaction(transaction, AckType.INDIVIDUAL, [given])

    # --- checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        readable = []
        for index, owner in self.owner.items():
            if owner in self.open:
                break
            if owner not in self.aborted:
                readable.append(index)
        assert self.seen == readable
        last = self.topic.last_id
        expected = self.topic.log[readable[-1]].position if readable else (-1, -1)
        assert (last.ledger_id, last.entry_id) == expected
        unacked = sum(full_set(self.sizes[each]) & ~self.acked[each] != 0 for each in self.owner)
        hidden = sum(owner in self.aborted for owner in self.owner.values())
        # hidden entries are acknowledged when the dispatcher comes to them
        assert unacked - hidden <= self.subscription.backlog <= unacked + len(self.topic.log.hidden)


steps = st.lists(
    st.tuples(
        st.sampled_from(["begin", "send", "send", "commit", "abort", "ack", "ack", "ack"]),
        st.integers(0, 5),
        st.integers(0, 40),
        st.integers(0, 2),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(kind=st.sampled_from([SubType.SHARED, SubType.KEY_SHARED, SubType.EXCLUSIVE]), program=steps)
def test_random_programs(kind: SubType, program: list[tuple[str, int, int, int]]) -> None:
    scene = Scene(kind)
    for name, which, where, number in program:
        transaction: Any = None if not which or not scene.open else scene.open[which % len(scene.open)]
        if name == "begin":
            scene.begin()
        elif name == "send":
            scene.send(transaction, number + 1)
        elif name == "ack":
            if scene.seen:
                scene.ack(transaction, scene.seen[where % len(scene.seen)], number)
        elif transaction is not None:
            scene.end(transaction, commits=name == "commit")
        scene.check()
    for transaction in list(scene.open):
        scene.end(transaction, commits=bool(transaction[1] % 2))
        scene.check()
    assert not scene.subscription.cursor.reserved
