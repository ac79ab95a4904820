"""Hook: the methods that a hook object may implement, as in franz-go (`kgo/hooks.go`).

It is below all clients: they report events, and none looks up at another for it. The methods have the types of higher
rooms, which are imported for annotations only. `asyncgroup.hooks`, which calls the methods, knows only their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from asyncgroup.hooks import AttachRole, DeliveryOutcome, StallKind, TransactionOutcome, defines_no_listeners

if TYPE_CHECKING:
    from asyncgroup.consumer import Consumer
    from asyncgroup.errors import AsyncGroupError, SessionEnd
    from asyncgroup.group.consumer_group import ConsumerGroup
    from asyncgroup.group.sessions.claim import Claim
    from asyncgroup.group.sessions.session import Session
    from asyncgroup.interceptor import ProducerRecord
    from asyncgroup.model import Batch, BatchResult, Record, RecordMetadata, TopicPartition
    from asyncgroup.offsets import CommittedOffset
    from asyncgroup.producer import Producer
    from asyncgroup.pulsar import (
        MessageId,
        PulsarClient,
        PulsarProducer,
        PulsarProducerRecord,
        PulsarTopicConsumer,
        PulsarTransaction,
    )
    from asyncgroup.workqueue.delivery import Delivery
    from asyncgroup.workqueue.work_queue import WorkQueue

__all__ = ["Hook"]


# mypy takes a protocol method with only a docstring for an abstract one; a `return` prevents that.
# ruff: noqa: ARG002
@defines_no_listeners
class Hook(Protocol):
    """The methods that a hook object may implement. Pass hooks as `hooks=[…]` to a client, a Cluster or a PulsarClient.

    Any object with any subset of the methods is a hook; missing methods are not called. As a base class, Hook has all
    methods, which do nothing. Methods are plain functions, run on the event loop and must return at once. An exception
    in one is logged (`asyncgroup.hooks`) and otherwise ignored. Durations are seconds, sizes bytes. `node_id` is
    negative for a bootstrap address, and -1 for brokers of Pulsar, which have no numbers. `group_id` is also the name of a
    subscription of Pulsar, and an offset is -1 there. Later versions may add methods and arguments; accept `*rest` to be prepared for
    the latter.

    `on_handler_start`, `on_process_start`, `on_delivery_start`, `on_send_start` and `on_transaction_start` each have one `…_end`, which gets
    the same object: the claim, the record or batch, the delivery, the record, the transaction. A tracer keeps its spans in a dict by the object's `id`,
    which stays in use until the end. Nothing is called for a record unless a hook has a method of its pair.
    """

    def on_connect(self, node_id: int, host: str, port: int, purpose: str) -> None:
        """A connection was established, TLS and SASL included; `host` and `port` are the address that answered.

        `purpose` says what it is used for: a node has separate connections for "control", "group" (heartbeats and
        commits), the joins of a group, "fetch" and so on. All connections to Pulsar have "pulsar".
        """
        return

    def on_disconnect(self, node_id: int, host: str, port: int, purpose: str, error: AsyncGroupError) -> None:
        """A connection reported by `on_connect` has ended; `error` says why, also after a normal close."""
        return

    def on_request(self, node_id: int, api: str, version: int, size: int) -> None:
        """A request was written: Kafka's API name (`Fetch`, `OffsetCommit`, …), version, and size in bytes on the wire.

        Of Pulsar the name of the command (`LOOKUP`, `SUBSCRIBE`, `ACK`, …); messages are in `on_batch_done` and `on_receive`.
        """
        return

    def on_response(self, node_id: int, api: str, seconds: float, size: int) -> None:
        """A response arrived `seconds` after its request was written; `size` is in bytes on the wire."""
        return

    def on_throttle(self, node_id: int, api: str, seconds: float) -> None:
        """A broker throttles this client: no request is sent on the connection for `seconds` (KIP-219)."""
        return

    def on_metadata(self, cluster_id: str | None, brokers: int, topics: int) -> None:
        """The metadata was refreshed: `brokers` and `topics` are the numbers of known brokers and topics."""
        return

    def on_open(
        self,
        client: ConsumerGroup
        | Consumer
        | Producer
        | WorkQueue
        | PulsarClient
        | PulsarProducer
        | PulsarTopicConsumer,
    ) -> None:
        """A client was entered. The hooks of a Cluster also get this of the groups, consumers and queues that use it.

        A work queue is reported after its own ConsumerGroup. A producer of Kafka reports itself to its own hooks only, and one of
        Pulsar to those of its PulsarClient.
        """
        return

    def on_join(self, group_id: str, member_id: str, generation_id: int, is_leader: bool) -> None:
        """The member has joined a generation and received its assignment."""
        return

    def on_session_start(self, session: Session) -> None:
        """A session starts: it has its claims, and `setup` is called next."""
        return

    def on_session_end(self, session: Session, cause: SessionEnd | None) -> None:
        """A session has ended, its last commit included."""
        return

    def on_handler_start(self, session: Session, claim: Claim) -> None:
        """`consume_claim` is called next, in the same task: context variables that are set here hold in the handler.

        The claims of a work queue have a handler each, which delivers their records.
        """
        return

    def on_handler_end(self, session: Session, claim: Claim, error: BaseException | None) -> None:
        """`consume_claim` has returned, or raised `error`, in the same task: a CancelledError if it was cancelled.

        A handler that was cancelled before its first step has had no `on_handler_start` and has no end.
        """
        return

    def on_process_start(self, group_id: str, records: Record | Batch) -> None:
        """A reader gets this record or batch next: `async for` over a claim, `batches()`, `group.records()`, a Consumer.

        Called in the task that reads, if it awaits the iterator itself: context variables that are set here hold in the body of
        its loop. `group_id` is empty for a Consumer. Work queues report their deliveries instead. A hook may have a method
        `wants_records()`, which is asked once for each batch of fetched records: while it returns False, single records are
        not reported, and cost nothing. Batches always are.
        """
        return

    def on_process_end(self, group_id: str, records: Record | Batch, error: BaseException | None) -> None:
        """The reader asks for the next record or batch, or has ended; `error` is what its `consume_claim` has raised."""
        return

    def on_heartbeat(self, group_id: str, seconds: float) -> None:
        """A heartbeat was answered `seconds` after it was sent, perhaps with a rebalance or a refusal.

        Answers after which it is retried are not reported, for example while the coordinator loads.
        """
        return

    def on_member_stalled(self, group_id: str, kind: StallKind, seconds: float, text: str) -> None:
        """The member has been stalled for `seconds`; `text` says by what, and is also logged.

        `kind`: `event loop` (nothing ran on it; called when it runs again. The log line is another text: it is written during
        the block, and says where), `claim` (a handler shows no progress for `max_poll_interval`, and the member leaves its
        group), `join` (it is not complete after 10 s), `coordinator` (none is found, or it answers no heartbeats).
        """
        return

    def on_commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        errors: Mapping[TopicPartition, AsyncGroupError] | None,
    ) -> None:
        """A commit was answered or failed: the offsets that were sent, and the errors of the partitions that failed.

        `errors` is None if all offsets were committed.
        """
        return

    def on_fetch(self, node_id: int, size: int, partitions: int) -> None:
        """A fetch was answered: `size` bytes of (compressed) record batches; `partitions` were requested."""
        return

    def on_stalled(self, topic: str, partition: int) -> None:
        """A partition's reader took no record for `max_processing_time` while some were buffered: fetching stops."""
        return

    def on_resumed(self, topic: str, partition: int) -> None:
        """A stalled partition is fetched again."""
        return

    def on_chunks_dropped(self, topic: str, partition: int, first_offset: int, reason: str) -> None:
        """A value that was written in chunks is given up; its chunks are dropped (`chunks="assemble"`).

        `reason`: `expired`, `too many`, `too large`, `gap`, `mismatch`, `no first chunk` (see `consumer/chunk_assembler.py`).
        Of Pulsar it is called if the chunks are acknowledged; otherwise they come again.
        """
        return

    def on_delivery_start(self, delivery: Delivery) -> None:
        """A work queue delivers a record: its handler, or the caller of `receive`, gets it next."""
        return

    def on_delivery_end(
        self, delivery: Delivery, outcome: DeliveryOutcome, error: BaseException | None
    ) -> None:
        """A delivery is settled; `error` is the exception of its handler, if that is the reason.

        `outcome`: `acknowledged` (the record is done, and committed with the next grouped commit), `nacked` (it is delivered again),
        `retry` or `dead letter` (its copy is in that topic, and it is done), `expired` (the ack timeout has passed), `released`
        (neither done nor failed: cancelled, or the queue was closed), `lost` (the partition was revoked). Each delivery that
        was started ends once.
        """
        return

    def on_send_start(self, record: ProducerRecord | PulsarProducerRecord) -> None:
        """A producer accepts a record, after its interceptors: there is room for it. Called in the task that sends it.

        A record that is too large or exceeds a limit, so that there is no room for it, is not reported. A value that is written in
        chunks is one record.
        """
        return

    def on_send_end(
        self,
        record: ProducerRecord | PulsarProducerRecord,
        metadata: RecordMetadata | MessageId | None,
        error: Exception | None,
    ) -> None:
        """The record of `on_send_start`, the same object, was acknowledged, with `metadata`, or has failed, with `error`.

        Called before the caller of `send` continues. Within a transaction the record is not committed yet.
        """
        return

    def on_produce(self, topic: str, partition: int, records: int, error: Exception | None) -> None:
        """A batch of `records` records was acknowledged, or failed with `error` and will not be retried."""
        return

    def on_delivered(self, topic: str, partition: int, base_offset: int, records: int) -> None:
        """A batch was acknowledged: offset of its first record (-1 with acks=0) and number of records."""
        return

    def on_batch_done(self, batch: BatchResult) -> None:
        """A batch was acknowledged or has failed, as with `on_produce`; with its sizes, latency and attempts."""
        return

    def on_attached(self, role: AttachRole, topic: str, partition: int, seconds: float) -> None:
        """A broker of Pulsar has registered a producer or consumer, `seconds` after its first attempt or its loss.

        `partition` is -1 in a topic without partitions.
        """
        return

    def on_detached(self, role: AttachRole, topic: str, partition: int, error: Exception) -> None:
        """A producer or consumer of Pulsar has lost its broker, or an attempt to register has failed.

        Another attempt follows, unless the error is one that ends it.
        """
        return

    def on_receive(self, group_id: str, topic: str, partition: int, records: int, size: int) -> None:
        """A broker of Pulsar has pushed an entry with `records` messages to be delivered; `size` is that of its frame.

        There is none to be delivered in an entry that was received before, or that is a chunk of an incomplete value.
        """
        return

    def on_ack(
        self, group_id: str, topic: str, partition: int, entries: int, error: Exception | None
    ) -> None:
        """A broker of Pulsar has confirmed the acknowledgement of `entries` entries, or refused it with `error`.

        What was refused, or not answered in time, is sent again.
        """
        return

    def on_transaction_start(self, transaction: PulsarTransaction) -> None:
        """A transaction of Pulsar has begun: it has a `txn_id`."""
        return

    def on_transaction_end(
        self,
        transaction: PulsarTransaction,
        outcome: TransactionOutcome,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """The transaction of `on_transaction_start`, the same object, has ended, `seconds` after its begin.

        `outcome`: `committed`, `aborted`, `timed out` (aborted after its timeout), `unknown` (the request to commit got no answer).
        `error` is why it was not committed; None for one that was, and for one that its program has aborted with `abort()`.
        """
        return
