"""WorkQueue: one consumer of a queue of records, with Pulsar's delivery semantics on a consumer group.

As for ConsumerGroup, importing this module loads little and creating a queue only checks its arguments; the engine
(`engine.py`) is imported on a thread when the queue is entered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal, Self

from asyncgroup.checks import check_count, check_group_id, parse_servers
from asyncgroup.errors import ClosedError, ConfigError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.model import wall_clock
from asyncgroup.workqueue.foreign_names import QUEUE
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.policies import Backoff, as_backoff
from asyncgroup.workqueue.queue_arguments import QueueArguments

if TYPE_CHECKING:
    from asyncgroup.cluster import Cluster
    from asyncgroup.cluster.bootstrap import BootstrapServers
    from asyncgroup.config import ConsumerConfig, ProducerConfig
    from asyncgroup.consumer.error_stream import ErrorReader
    from asyncgroup.group.health import Health
    from asyncgroup.group.topics import Pattern, Topics
    from asyncgroup.hashing.key_ranges import KeyRange
    from asyncgroup.model import MillisClock, Record
    from asyncgroup.workqueue.batch_receive import DeliveryBatch
    from asyncgroup.workqueue.core import QueueCore
    from asyncgroup.workqueue.delivery import Delivery
    from asyncgroup.workqueue.group_engine.seeking import SeekTarget
    from asyncgroup.workqueue.group_engine.topic_names import CopyTopics
    from asyncgroup.workqueue.interceptors import QueueInterceptor
    from asyncgroup.workqueue.policies import BatchPolicy, DeadLetter, RetryTopic
    from asyncgroup.workqueue.queue_consumer import QueueConsumer
    from asyncgroup.workqueue.receiver import Deliveries
    from asyncgroup.workqueue.settings import OnAckTimeout, QueueSettings
    from asyncgroup.workqueue.statistics import QueueStatistics
    from asyncgroup.workqueue.workers import DeliveryHandler

__all__ = ["WorkQueue"]

MIB = 1024 * 1024

TRANSACTION_TIMEOUT = 10.0
"""The transaction timeout in seconds without a `producer_config`, as with ConsumeTransformProduce: after a crash, the next owners
of the partitions wait at most this long for the offsets of an open transaction."""


class WorkQueue(QueueArguments):
    """One consumer of the subscription `group_id`: each record is acknowledged by itself, in any order.

        queue = WorkQueue("localhost:9092", "billing", "orders", mode=Mode.KEY_SHARED, dead_letter=DeadLetter(5))
        async with queue:
            await queue.run(handle)             # `async def handle(delivery)`: returns = ack, raises = nack

    Acknowledgements survive restarts and rebalances: each commit has the acknowledged offsets above the committed one in its
    metadata. After a crash, only records are delivered again that were not acknowledged, or that were acknowledged after the
    last commit (`ack_group_time`, `ack_group_size`).

    Delivery:

    - `mode`: how records are distributed among the consumers of the group, see Mode.
    - `concurrency`: the maximum number of handlers that `run` runs concurrently.
    - `allow_out_of_order`: with Mode.KEY_SHARED, whether the next record of a key is delivered while an earlier one waits
      after a nack. `ordering_key`: a function (record) -> bytes or None, in place of the header `ag-ordering-key` or the
      record's key, that returns the same for a record each time; records without a key have no order. If it raises, the
      record goes to the dead letter topic; without `dead_letter` the queue ends with that error.
    - `priority` (0 is the highest) and `name`: with Mode.FAILOVER, which consumer is active; see FailoverAssignor.
    - `initial_position`: where a partition without a commit begins, `latest` or `earliest`; None means
      `auto_offset_reset` of `config`.

    Failed deliveries:

    - `nack_backoff`: seconds, or a Backoff, before a nacked record is delivered again. `retry_share`: the largest share of
      deliveries and handlers for such records while there are others.
    - `ack_timeout`: seconds after which a delivery that was not ended has failed, from when the handler or the task gets it;
      None for no timeout. `on_ack_timeout`: whether `run` cancels the handler first (`cancel`), or lets it go on
      (`redeliver`), as Pulsar does.
    - `retry`: the topic of `Delivery.reconsume_later`, which the queue also reads. `dead_letter`: the maximum of
      redeliveries, and the topic that a record is copied to after them. With `retry` alone it is DeadLetter(16), as in Pulsar; without both a record
      is delivered until it is acknowledged. A copy that cannot be written is tried again; the record is acknowledged when the
      broker has acknowledged the copy.
    - `transactional_copies`: whether a copy and the acknowledgement of its original are committed in one transaction
      (KIP-98, KIP-447), so that readers with `read_committed` see each copy exactly once, also after crashes. Otherwise a copy
      may be written twice after a crash, a timeout or a rebalance. Acknowledgements of the partitions in a transaction are
      committed when it has ended. The transactional id is that of `producer_config`, which must differ between the members (after
      ProducerFencedError the queue ends), or else `<group>-<group_instance_id>`, or `<group>-` and a random number. The
      transaction timeout is 10 s without a `producer_config`. The default isolation level of the group is `read_committed`;
      with a retry topic, a `config` must have it.

    Acknowledgements: `ack_group_time` seconds after the first one, or after `ack_group_size` of them, all are committed; with a
    time of 0 each is committed at once. With acknowledgements of more than 64 partitions, `ack_group_size` is the number for
    each 64 of them, unless one partition has as many: a commit costs in proportion to its partitions.

    Limits:

    - `receiver_queue`, `receiver_queue_total`: records of a partition that are prefetched: the smaller one of the first, and the
      second divided by the number of partitions. More are fetched when half of them are delivered. 0 prefetches none: a
      record is fetched when a task waits for one.
    - `receive_buffer_bytes`: memory of all records that were received and are not acknowledged, with about 560 bytes more for
      each, and of copies that are being written; each partition has its part and gets at least one record. `max_waiting`:
      records of a partition that wait for the end of a delay. A partition at one of these limits gets no more records until
      some are acknowledged; the others go on.

    Others: `config` and `producer_config` are those of the group and of the producer of copies. By default rebalances are
    cooperative, values in chunks are assembled, and large copies are written in chunks. `hooks`, `interceptors`: see Hook and
    QueueInterceptor. `migrate_from`: with `"parallel-consumer"`, the completed offsets that Confluent's parallel-consumer
    committed are not delivered again. `clock` returns the time of day in ms, which delivery times are compared with.
    `engine`: `group` (a consumer group) is the only one.

    `decode`: a function (record) -> object whose result is `Delivery.decoded`. A record for which it raises is copied to the
    dead letter topic at once, with its bytes as they are; without such a topic it is nacked.

    Entering raises ConsumerBusy if another consumer holds a queue with Mode.EXCLUSIVE, NoBrokersError if no bootstrap server
    responds. Raises ConfigError for invalid arguments and for combinations that are impossible.
    """

    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        group_id: str,
        topics: Topics,
        *,
        mode: Mode = Mode.SHARED,
        concurrency: int = 100,
        ack_timeout: float | None = None,
        on_ack_timeout: OnAckTimeout = "cancel",
        nack_backoff: Backoff | float = 60.0,
        retry: RetryTopic | None = None,
        dead_letter: DeadLetter | None = None,
        transactional_copies: bool = False,
        ack_group_time: float = 0.1,
        ack_group_size: int = 1000,
        receiver_queue: int = 1000,
        receiver_queue_total: int = 50_000,
        receive_buffer_bytes: int = 64 * MIB,
        max_waiting: int = 10_000,
        retry_share: float = 0.3,
        allow_out_of_order: bool = False,
        ordering_key: Callable[[Record], bytes | None] | None = None,
        initial_position: Literal["earliest", "latest"] | None = None,
        priority: int = 0,
        name: str = "",
        config: ConsumerConfig | None = None,
        producer_config: ProducerConfig | None = None,
        hooks: Iterable[object] = (),
        interceptors: Iterable[QueueInterceptor] = (),
        decode: Callable[[Record], object] | None = None,
        migrate_from: Literal["parallel-consumer"] | None = None,
        clock: MillisClock = wall_clock,
        engine: Literal["group"] = "group",
    ) -> None:
        from asyncgroup.config import ProducerConfig
        from asyncgroup.group.topics import check_topics
        from asyncgroup.hooks import check_hooks
        from asyncgroup.wire.loading import load_module
        from asyncgroup.workqueue.interceptors import QueueInterceptors
        from asyncgroup.workqueue.settings import QueueSettings, consumer_config

        self.group_id = check_group_id(group_id)
        self._settings = QueueSettings(
            mode=mode,
            concurrency=concurrency,
            ack_timeout=ack_timeout,
            on_ack_timeout=on_ack_timeout,
            nack_backoff=as_backoff("nack_backoff", nack_backoff),
            retry=retry,
            dead_letter=dead_letter,
            transactional_copies=transactional_copies,
            ack_group_time=ack_group_time,
            ack_group_size=ack_group_size,
            receiver_queue=receiver_queue,
            receiver_queue_total=receiver_queue_total,
            receive_buffer_bytes=receive_buffer_bytes,
            max_waiting=max_waiting,
            retry_share=retry_share,
            allow_out_of_order=allow_out_of_order,
            ordering_key=ordering_key,
            priority=priority,
            name=name,
            migrate_from=migrate_from,
            engine=engine,
        )
        self.config = consumer_config(config, self._settings, clock(), initial_position)
        self._topics = check_topics(topics, self.config.group_protocol)
        self._copy_topics = _copy_topics(self._settings, self._topics, self.group_id)
        self._producer_config = (
            ProducerConfig(chunking=True, transaction_timeout=TRANSACTION_TIMEOUT)
            if producer_config is None
            else ProducerConfig.of(producer_config)
        )
        _check_producer(self._producer_config, is_transactional=transactional_copies)
        self._clock = clock
        self._hooks = check_hooks(hooks)
        if decode is not None and not callable(decode):
            raise ConfigError("decode", decode, "None or a function (record) -> object")
        self._interceptors = QueueInterceptors(interceptors, decode)
        self._servers = _check_servers(bootstrap_servers)
        self._load_engine = partial(load_module, "asyncgroup.workqueue.group_engine.engine")
        self._created: QueueCore | None = None

    def __repr__(self) -> str:
        if self._created is None:
            return f"<WorkQueue {self.group_id!r}, {self.mode.value}: not open>"
        return repr(self._created)

    @property
    def mode(self) -> Mode:
        """How records are distributed among the consumers of the group."""
        return self._settings.mode

    @property
    def retry_topic(self) -> str | None:
        """The topic of `Delivery.reconsume_later`; None without `retry`."""
        return self._copy_topics.retry

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of dead letters; None without `dead_letter` and `retry`."""
        return self._copy_topics.dead_letter

    # --- life -------------------------------------------------------------------------------------------------------------

    def _time_of_day(self) -> MillisClock:
        """Return the clock of delivery times: by default that of the event loop, if it has one, as in virtual time."""
        if self._clock is not wall_clock:
            return self._clock
        of_loop: MillisClock = getattr(asyncio.get_running_loop(), "wall_clock", wall_clock)
        return of_loop

    async def __aenter__(self) -> Self:
        await self._load_engine()
        if self._created is not None:
            raise ClosedError(f"work queue {self.group_id!r} was entered before: create a new one")
        from asyncgroup.workqueue.core import QueueCore
        from asyncgroup.workqueue.group_engine.engine import ConsumerGroupEngine

        clock = self._time_of_day()
        engine = ConsumerGroupEngine(
            self._servers,
            self.group_id,
            self._topics,
            self._copy_topics,
            self._settings,
            self.config,
            self._producer_config,
            self._hooks,
            clock,
        )
        self._created = QueueCore(engine, self._settings, self._interceptors, clock)
        await self._created.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Begin no more deliveries, commit, leave the group, and close. Safe to call twice.

        Handlers and other tasks have `close_timeout` of `config` less a reserve to end their deliveries; after that handlers
        are cancelled. Deliveries of the calling task are given back. Called by a handler, or by a task that it has started, it
        only begins the close.
        """
        if self._created is not None:
            await self._created.aclose()

    @property
    def _core(self) -> QueueCore:
        if self._created is None:
            raise ClosedError(f"work queue {self.group_id!r} is not open: use `async with WorkQueue(…)`")
        return self._created

    # --- deliveries ---------------------------------------------------------------------------------------------------------

    async def run(self, handle: DeliveryHandler) -> None:
        """Call `handle(delivery)`, an async function, for each delivery, up to `concurrency` at a time, until the queue closes.

        A delivery is acknowledged when its handler returns and nacked when it raises; neither if it is cancelled, or has
        ended its delivery itself. With the modes Exclusive and Failover the records of a partition are handled one after
        another, in order. Cancelling `run` cancels the handlers; their records are delivered again.

        Raises ConfigError for a plain function (see `in_thread`), UsageError if it runs already, ClosedError, and what ended
        the queue: errors of the group that are not retriable, ConsumerBusy, DeadLetterRateError.
        """
        await self._core.run(handle)

    def __aiter__(self) -> Deliveries:
        """Return an iterator of deliveries; each has to be ended by `ack`, `nack`, `reject` or `reconsume_later`.

        The loop ends when the queue closes, and raises what ended it otherwise. Several tasks may iterate.
        """
        return self._core.deliveries()

    async def receive(self) -> Delivery:
        """Return the next delivery. A cancelled call loses none. Raises ClosedError, and what ended the queue."""
        core = self._core
        core.check_no_consumers("receive")
        return await core.receiver.receive_own()

    async def batch_receive(self, policy: BatchPolicy | None = None) -> DeliveryBatch:
        """Return the next deliveries, up to the first limit of `policy` (default: 10 MiB, 0.1 s); possibly none.

        Each has its own outcome; `async with` on the batch ends those that are left. A cancelled call loses none.
        Raises ClosedError, and what ended the queue.
        """
        from asyncgroup.workqueue.batch_receive import receive_batch
        from asyncgroup.workqueue.queue_consumer import check_policy

        core = self._core
        core.check_no_consumers("batch_receive")
        return await receive_batch(core.receiver, core.dispatcher, check_policy(policy))

    def consumer(
        self,
        name: str,
        *,
        priority: int = 0,
        receiver_queue: int = 1000,
        key_ranges: Iterable[KeyRange | tuple[int, int]] | None = None,
        concurrency: int | None = None,
    ) -> QueueConsumer:
        """Return a further consumer of the queue in this process; from then on the queue is read by its consumers only.

        - `priority`: with Mode.SHARED, a consumer gets deliveries only while none with a higher priority (a smaller number)
          has room; those of the same priority take turns. (Between processes only Mode.FAILOVER has priorities.)
        - `receiver_queue`: deliveries that wait in its inbox, at least 1.
        - `key_ranges`: with Mode.KEY_SHARED, the hashes (0 to 65535, both ends included) of its keys; None divides the
          hashes among the consumers, each of which keeps its keys while others come and go, but for those that it gives up.
        - `concurrency`: handlers of its `run`; None means the queue's.

        Raises ConfigError for invalid values, a name that is in use, ranges that overlap, and a second consumer with Mode.EXCLUSIVE
        or Mode.FAILOVER; UsageError if the queue itself is read already; ClosedError.
        """
        from asyncgroup.workqueue.local_consumers import LocalConsumer

        core = self._core
        if concurrency is not None:
            check_count("concurrency", concurrency)
        local = LocalConsumer(name, priority=priority, permits=receiver_queue, key_ranges=key_ranges)
        return core.consumer(local, concurrency)

    @property
    def paused(self) -> bool:
        """Whether the user has paused the queue."""
        return self._core.paused

    def pause(self) -> None:
        """Begin no more deliveries until `resume`; open deliveries may be ended, and the queue keeps its partitions."""
        self._core.pause(paused=True)

    def resume(self) -> None:
        """Undo `pause`."""
        self._core.pause(paused=False)

    async def seek(self, position: SeekTarget, *, inclusive: bool = True) -> None:
        """Continue at another position, in the partitions that this consumer has now: earlier records count as acknowledged.

        `position` is `earliest`, `latest`, a datetime with a time zone (the first record of that time or later), a timedelta (the
        first record not older than that), an offset, or offsets by partition. `inclusive` says whether the record at a given
        offset is delivered; Pulsar's default is the next one (`startMessageIdInclusive`). Open deliveries are lost: they
        end with AckOutcome.LOST, handlers of `run` are cancelled. What follows waits until these have ended. Other
        consumers of the group go on where they are.

        A queue that has just been entered waits until the first of its partitions have started. A partition that has not
        started, because its leader does not answer (`health()` names it), starts where it would without the seek. An offset
        outside the log is reset as by `out_of_range_reset`, by default to the earliest record.

        Raises ConfigError for other values and partitions; OffsetLookupError with the partitions whose new position is not
        known, which go on where they are, while the others have been moved; TransportError, ClosedError.
        """
        await self._core.engine.seek(position, inclusive=inclusive)

    # --- observability -----------------------------------------------------------------------------------------------------

    def statistics(self) -> QueueStatistics:
        """Return counts since the queue was opened, and the records of each partition by state."""
        return self._core.statistics()

    def health(self) -> Health:
        """Return the health of the queue's group member, with the queue's problems; it sends no request."""
        core = self._core
        return core.engine.health(core.problems())

    def errors(self) -> ErrorReader:
        """Return a new async iterator of the errors that are retried: those of the group, CopyFailedError, and failed commits."""
        return self._core.engine.errors()


def _check_servers(servers: BootstrapServers | Cluster) -> BootstrapServers | Cluster:
    if isinstance(servers, Iterable):
        if not isinstance(servers, str | Mapping):
            servers = tuple(servers)
        parse_servers(servers)
    return servers


def _check_producer(config: ProducerConfig, *, is_transactional: bool) -> None:
    """Raise ConfigError unless the producer of copies is idempotent, and transactional only with `transactional_copies`."""
    if config.transactional_id is not None and not is_transactional:
        allowed = "None for the copies of a work queue without transactional_copies"
        raise ConfigError("transactional_id", config.transactional_id, allowed)
    if not config.effective_enable_idempotence:
        key = "acks" if config.acks != "all" else "enable_idempotence"
        raise ConfigError(
            key, getattr(config, key), "acks='all' and an idempotent producer for a queue's copies"
        )


def _copy_topics(settings: QueueSettings, topics: list[str] | Pattern, group_id: str) -> CopyTopics:
    from asyncgroup.workqueue.group_engine.topic_names import (
        copy_topics,
        dead_letter_topic_name,
        retry_topic_name,
    )

    retry, policy = settings.retry, settings.dead_letter_policy
    retry_topic = dead_letter_topic = None
    if retry is not None:
        retry_topic = retry.topic or retry_topic_name(retry.names, topics, group_id)
    if policy is not None:
        dead_letter_topic = policy.topic or dead_letter_topic_name(policy.names, topics, group_id)
    return copy_topics(topics, retry_topic, dead_letter_topic)


add_foreign_names(WorkQueue, QUEUE)
