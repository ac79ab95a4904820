"""The mutants: a function, a text of it, and what is there instead. `finds` names the invariants that detect it."""

from __future__ import annotations

from typing import Final, NamedTuple

from asyncgroup.pulsar.consumer.acks.pending_acks import PendingAcks
from asyncgroup.pulsar.consumer.acks.redelivery import RedeliveryRequests
from asyncgroup.pulsar.consumer.acks.unacked import UnackedEntries
from asyncgroup.pulsar.consumer.partition.position import SubscriptionPosition
from asyncgroup.pulsar.consumer.receiving.arrivals import Arrivals
from asyncgroup.pulsar.consumer.receiving.permits import PermitLedger
from asyncgroup.pulsar.consumer.receiving.receiver_queue import ReceiverQueue
from asyncgroup.pulsar.producer.partition_producer import PartitionProducer
from asyncgroup.pulsar.producer.send_queue import SendQueue
from asyncgroup.pulsar.producer.sequence_ids import SequenceIds
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar_broker.node import PulsarNode
from asyncgroup.pulsar_broker.requests import producer_requests
from asyncgroup.pulsar_broker.requests.consumer_requests import ConsumerRequests
from asyncgroup.pulsar_broker.requests.producer_requests import ProducerRequests
from asyncgroup.pulsar_broker.subscriptions.consumer_rotation import ConsumerRotation
from asyncgroup.pulsar_broker.subscriptions.cursor import Cursor
from asyncgroup.pulsar_broker.subscriptions.dispatch_shared import KeySharedDispatcher, SharedDispatcher
from asyncgroup.pulsar_broker.subscriptions.dispatch_single import SingleActiveDispatcher
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.topics.topic_producers import TopicProducers
from asyncgroup.pulsar_broker.topics.transaction_buffer import TransactionBuffer
from asyncgroup.workqueue.pulsar_engine.queue_partition import QueuePartition

__all__ = ["MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    """A bug."""

    name: str
    owner: object
    """The class or module that has the function."""
    function: str
    old: str
    new: str
    seed: int
    """A seed that detects it."""


BROKERS: Final = [
    Mutant(
        "a batch takes one permit",
        SubscribedConsumer,
        "take",
        "self.permits -= count",
        "self.permits -= 1",
        1,
    ),
    Mutant("unacked messages are not counted down", SubscribedConsumer, "acked", "count - left", "0", 0),
    Mutant("a blocked consumer stays so", SubscribedConsumer, "acked", "self.is_blocked = False", "pass", 13),
    Mutant(
        "ack sets are not pushed",
        SubscribedConsumer,
        "take",
        "() if ack_set is None else words_of(ack_set)",
        "()",
        1,
    ),
    Mutant(
        "what a consumer had is lost",
        SharedDispatcher,
        "remove",
        "self._put_again(self._take_back(consumer))",
        "self._take_back(consumer)",
        5,
    ),
    Mutant("a redelivery is forgotten", SharedDispatcher, "redeliver", "self._put_again(given)", "pass", 0),
    Mutant(
        "redeliveries are in disorder",
        SharedDispatcher,
        "_next_index",
        "heappop(self._again)",
        "self._again.pop()",
        0,
    ),
    Mutant(
        "delayed messages come at once", SharedDispatcher, "_is_delayed", "time is None or", "True or", 11
    ),
    Mutant("delayed messages are lost", SharedDispatcher, "on_due", "self._put_again(due)", "pass", 11),
    Mutant(
        "a consumer is not able again",
        SharedDispatcher,
        "acked",
        "self._rotation.refresh(holder)",
        "pass",
        34,
    ),
    Mutant("permits do not count", ConsumerRotation, "refresh", "self._able.insert(at, place)", "pass", 1),
    Mutant("a key moves at once", KeySharedDispatcher, "_consumer_of", "if holders:", "if False:", 20),
    Mutant(
        "a hash is never drained", KeySharedDispatcher, "_drained", "holders.pop(index, None)", "pass", 20
    ),
    Mutant("what waits is lost", KeySharedDispatcher, "dispatch", "self._put_again(waiting)", "pass", 0),
    Mutant(
        "the former active consumer keeps its messages",
        SingleActiveDispatcher,
        "_choose",
        "before.give_back()",
        "pass",
        1,
    ),
    Mutant("the epoch stays", SingleActiveDispatcher, "redeliver", "consumer.epoch = epoch", "pass", 13),
    Mutant(
        "nothing comes again in order",
        SingleActiveDispatcher,
        "redeliver",
        "    self.rewind()",
        "    pass",
        10,
    ),
    Mutant(
        "a seek moves no cursor",
        TopicSubscription,
        "seek",
        "self.cursor.reset(index, is_shared=self.kind not in _IN_ORDER)",
        "pass",
        30,
    ),
    Mutant(
        "a seek is one too far",
        ConsumerRequests,
        "_seek",
        "log.index_of(position[:2])",
        "log.index_of(position[:2]) + 1",
        90,
    ),
    Mutant(
        "the last one is not acknowledged",
        TopicSubscription,
        "_ack_up_to",
        "self._ack(position, unacked, self.cursor.ack_up_to)",
        "pass",
        2,
    ),
    Mutant(
        "an ack set replaces the one before", Cursor, "ack", "self.unacked(entry) & unacked", "unacked", 1
    ),
    Mutant(
        "consumers are not closed",
        ConsumerRequests,
        "evict",
        "connection.send(c.CommandCloseConsumer(consumer_id=consumer.id, request_id=c.NO_REQUEST))",
        "pass",
        1,
    ),
    Mutant(
        "producers are not closed",
        ProducerRequests,
        "_close_by_broker",
        "connection.send(c.CommandCloseProducer(producer_id=producer_id, request_id=c.NO_REQUEST))",
        "pass",
        8,
    ),
    Mutant("a duplicate is stored", TopicProducers, "is_duplicate", "sequence_id <=", "sequence_id <", 28),
    Mutant("each chunk has a number", producer_requests, "_is_last_chunk", "chunks is None or", "True or", 1),
    Mutant("clients are not pinged", PulsarNode, "_ping", "connection.ping()", "pass", 5),
]

CLIENTS: Final = [
    Mutant(
        "messages that are dropped keep their permits",
        ReceiverQueue,
        "add",
        "arrive(charged,",
        "arrive(count,",
        1,
    ),
    Mutant("a queue that is dropped stays full", PermitLedger, "drop", "self.queued -= count", "pass", 2),
    Mutant("old epochs are delivered", Arrivals, "arrive", " or self._epoch.is_old(entry.epoch)", "", 32),
    Mutant(
        "acknowledged messages are delivered",
        Arrivals,
        "arrive",
        "self._acks.unacked_of(key)",
        "-1",
        66,
    ),
    Mutant(
        "acknowledgements end with a connection",
        PendingAcks,
        "disconnect",
        "self._take_back(batch)",
        "pass",
        24,
    ),
    Mutant(
        "acknowledgements of one batch are lost",
        UnackedEntries,
        "ack",
        "AckedEntry(() if batch.is_whole else (key,), left)",
        "AckedEntry((key,), 0)",
        1,
    ),
    Mutant(
        "chunks are not acknowledged",
        UnackedEntries,
        "add_chunks",
        "[one[:2] for one in ids]",
        "[ids[-1][:2]]",
        1,
    ),
    Mutant(
        "nacks are not sent",
        RedeliveryRequests,
        "send_due",
        "keys += self._unacked.entries_of(message)",
        "pass",
        0,
    ),
    Mutant(
        "a nacked message stays with its consumer",
        RedeliveryRequests,
        "send_due",
        "self._unacked.release(message)",
        "pass",
        4,
    ),
    Mutant(
        "messages of before a seek",
        SubscriptionPosition,
        "end_seek",
        "self._parts.arrivals.start = start",
        "pass",
        2,
    ),
    Mutant(
        "acknowledgements of before a seek",
        SubscriptionPosition,
        "end_seek",
        "self._parts.forget(last)",
        "pass",
        2,
    ),
    Mutant(
        "sends are repeated in disorder",
        SendQueue,
        "attach",
        "for send in self.pending:",
        "for send in reversed(list(self.pending)):",
        2,
    ),
    Mutant("sends are not repeated", SendQueue, "attach", "for send in self.pending:", "for send in ():", 5),
    Mutant("a producer counts from 0 again", SequenceIds, "register", "self.next = last + 1", "pass", 16),
    Mutant(
        "deliveries are not counted",
        QueuePartition,
        "_note_attempts",
        "self.work.window.set_attempts(number, attempts)",
        "pass",
        4,
    ),
]

TRANSACTIONAL: Final = [
    Mutant(
        "aborted messages are delivered",
        TransactionBuffer,
        "_write_marker",
        "self._log.hidden.update(indexes)",
        "pass",
        1000000,
    ),
    Mutant(
        "messages are delivered before the commit",
        TransactionBuffer,
        "_limit",
        "next(iter(self._open.values()))[0] if self._open else None",
        "None",
        1000003,
    ),
    Mutant(
        "a commit acknowledges nothing",
        TopicSubscription,
        "_end_transaction",
        "self._ack_entry(entry, unacked, self.cursor.commit)",
        "pass",
        1000000,
    ),
    Mutant(
        "an abort gives nothing back",
        TopicSubscription,
        "_end_transaction",
        "self._dispatcher.restore([entry.index for entry, _ in acked])",
        "pass",
        1000021,
    ),
    Mutant(
        "a commit waits for nothing",
        PulsarTransaction,
        "_wait_answered",
        "await operations.wait()",
        "pass",
        1000000,
    ),
    Mutant(
        "a transaction with a failure is committed",
        PulsarTransaction,
        "_wait_answered",
        "operations.failure is not None",
        "False",
        1000009,
    ),
    Mutant(
        "a message of a transaction is sent again without deduplication",
        PartitionProducer,
        "on_registered",
        "answer.last_sequence_id < 0",
        "False",
        1000009,
    ),
]

MUTANTS: Final = [*BROKERS, *CLIENTS, *TRANSACTIONAL]
