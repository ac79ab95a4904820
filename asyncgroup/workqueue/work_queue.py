"""WorkQueue: one consumer of a queue of records, with Pulsar's delivery semantics on a consumer group, or another source.

As for ConsumerGroup, importing this module loads little and creating a queue only checks its arguments; the engine is imported on
a thread when the queue is entered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, overload

from asyncgroup.checks import check_count
from asyncgroup.errors import ClosedError, ConfigError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.model import clock_of_loop, wall_clock
from asyncgroup.workqueue.delivery_result import DeliveryResult
from asyncgroup.workqueue.foreign_names import QUEUE
from asyncgroup.workqueue.policies import QueueArguments

if TYPE_CHECKING:
    from inspect import Signature

    from asyncgroup.cluster import Cluster
    from asyncgroup.cluster.bootstrap import BootstrapServers
    from asyncgroup.config import ConsumerConfig
    from asyncgroup.consumer.error_stream import ErrorReader
    from asyncgroup.group.health.health import Health
    from asyncgroup.group.topics.topics import Topics
    from asyncgroup.hashing.key_ranges import KeyRange
    from asyncgroup.model import MillisClock
    from asyncgroup.workqueue.batch_receive import DeliveryBatch
    from asyncgroup.workqueue.core import QueueCore
    from asyncgroup.workqueue.delivery import Delivery
    from asyncgroup.workqueue.group_engine.seeking import SeekTarget
    from asyncgroup.workqueue.modes import Mode
    from asyncgroup.workqueue.policies import BatchPolicy
    from asyncgroup.workqueue.queue_consumer import QueueConsumer
    from asyncgroup.workqueue.receiver import Deliveries
    from asyncgroup.workqueue.settings import QueueOptions
    from asyncgroup.workqueue.sources import Source
    from asyncgroup.workqueue.statistics import QueueStatistics
    from asyncgroup.workqueue.workers import DeliveryHandler

__all__ = ["WorkQueue"]

_OF_THE_SOURCE: Final = ("producer_config", "transactional_copies", "migrate_from", "max_waiting")
"""Settings that only a consumer group has."""


class _SettingsSignature:
    """The `__signature__` of WorkQueue: the settings stand in it by name, with their defaults, in place of `**settings`."""

    def __get__(self, instance: object, owner: type) -> Signature:
        from dataclasses import fields
        from inspect import Parameter, Signature, signature

        from asyncgroup.workqueue.settings import QueueOptions, QueueSettings

        _self, *own, _settings = signature(owner.__init__).parameters.values()  # type: ignore[misc]
        types = QueueOptions.__annotations__
        settings = [
            Parameter(
                each.name,
                Parameter.KEYWORD_ONLY,
                default=each.default,
                annotation=types[each.name].__forward_arg__,
            )
            for each in fields(QueueSettings)
        ]
        return Signature([*own, *settings])


class WorkQueue(QueueArguments):
    """One consumer of a subscription: each record is acknowledged by itself, in any order.

        queue = WorkQueue("localhost:9092", "billing", "orders", mode="key_shared", dead_letter=5)
        async with queue:
            await queue.run(handle)             # `async def handle(delivery)`: returns = ack, raises = nack

    `WorkQueue(servers, group, topics, *, config=None, hooks=(), …)` reads a consumer group of Kafka, and
    `WorkQueue(source, …)` any source: a GroupSource, which also has what only a consumer group has, or a MemorySource in tests. All
    other arguments are described in QueueSettings, field by field: how records are distributed (`mode`, `concurrency`, …), what
    follows from failed deliveries (`nack_backoff`, `retry`, `dead_letter`, `ack_timeout`), when acknowledgements are committed
    (`ack_group_time`), limits (`receiver_queue`, `receive_buffer_bytes`), and `decode` and `interceptors`.

    Acknowledgements survive restarts and rebalances: each commit of a group has the acknowledged offsets above the committed one in
    its metadata. After a crash, only records are delivered again that were not acknowledged, or that were acknowledged after the
    last commit (`ack_group_time`, `ack_group_size`).

    Entering raises ConsumerBusy if another consumer holds a queue with Mode.EXCLUSIVE, NoBrokersError if no bootstrap server
    responds. Raises ConfigError for invalid arguments and for combinations that are impossible.
    """

    __signature__ = _SettingsSignature()

    @overload
    def __init__(self, source: Source, /, **settings: Unpack[QueueOptions]) -> None: ...
    @overload
    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        group_id: str,
        topics: Topics,
        *,
        config: ConsumerConfig | None = None,
        hooks: Iterable[object] = (),
        **settings: Unpack[QueueOptions],
    ) -> None: ...
    def __init__(
        self,
        bootstrap_servers: Any,
        group_id: Any = None,
        topics: Any = None,
        *,
        config: Any = None,
        hooks: Iterable[object] = (),
        **settings: Any,
    ) -> None:
        from asyncgroup.workqueue.interceptors import QueueInterceptors
        from asyncgroup.workqueue.settings import QueueSettings
        from asyncgroup.workqueue.sources import check_features, group_source, is_source

        self._check_names(settings)
        self._settings = QueueSettings(**settings)
        if is_source(bootstrap_servers):
            _check_no_group(group_id=group_id, topics=topics, config=config, hooks=hooks or None)
            source: Source = bootstrap_servers
        else:
            _check_given(group_id=group_id, topics=topics)
            source = group_source(bootstrap_servers, group_id, topics, config=config, hooks=hooks)
        check_features(self._settings, source)
        self._servers = getattr(
            source, "bootstrap_servers", None
        )  # perhaps a Cluster, which `asyncgroup.run` opens
        self.group_id = source.subscription
        """The subscription: the id of the consumer group."""
        self._plan = source.plan(self._settings)
        self._interceptors = QueueInterceptors(self._settings.interceptors, self._settings.decode)
        self._created: QueueCore | None = None

    @classmethod
    def _check_names(cls, settings: dict[str, Any]) -> None:
        """Raise ConfigError for an unknown setting, and for one that belongs to the source."""
        from asyncgroup.properties.reader import shown
        from asyncgroup.workqueue.settings import QueueSettings

        known = tuple(each.name for each in fields(QueueSettings))
        for key, value in settings.items():
            if key in _OF_THE_SOURCE:
                allowed = f"given by the source: WorkQueue(GroupSource(servers, group, topics, {key}=…), …)"
                raise ConfigError(key, shown(key, value), allowed)
            if key not in known:
                names = ("bootstrap_servers", "group_id", "topics", "config", "hooks", *known)
                raise ConfigError(key, shown(key, value), cls._argument_hint(key, value, names))

    def __repr__(self) -> str:
        if self._created is None:
            return f"<WorkQueue {self.group_id!r}, {self.mode.value}: not open>"
        return repr(self._created)

    @property
    def config(self) -> ConsumerConfig | None:
        """The configuration of the consumer group, with what follows from the settings; None of other sources."""
        return self._plan.config

    @property
    def mode(self) -> Mode:
        """How records are distributed among the consumers of the group."""
        return self._settings.mode

    @property
    def retry_topic(self) -> str | None:
        """The topic of `Delivery.reconsume_later`; None without `retry`."""
        return self._plan.retry_topic

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of dead letters; None without `dead_letter` and `retry`."""
        return self._plan.dead_letter_topic

    # --- life -------------------------------------------------------------------------------------------------------------

    def _time_of_day(self) -> MillisClock:
        """Return the clock of delivery times: by default that of the event loop, if it has one, as in virtual time."""
        if self._settings.clock is not wall_clock:
            return self._settings.clock
        return clock_of_loop()

    async def __aenter__(self) -> Self:
        make_engine = await self._plan.load_engine()
        if self._created is not None:
            raise ClosedError(f"work queue {self.group_id!r} was entered before: create a new one")
        from asyncgroup.workqueue.core import QueueCore

        clock = self._time_of_day()
        engine = make_engine(self._plan, self._settings, clock)
        self._created = QueueCore(engine, self._settings, self._interceptors, clock)
        await self._created.open()
        engine.hooks.emit("on_open", self)
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
        return await receive_batch(core.receiver, core.dispatcher.outcomes, check_policy(policy))

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

    def seek(self, position: SeekTarget, *, inclusive: bool = True) -> DeliveryResult[None]:
        """Continue at another position, in the partitions that this consumer has now: earlier records count as acknowledged.

        Offsets take effect at the call, as those of `Claim.seek`; other positions are looked up, and `await` waits until
        that is done. An error of the lookup is also given to the readers of `errors`, or logged.

        `position` is `earliest`, `latest`, a datetime with a time zone (the first record of that time or later), a timedelta (the
        first record not older than that), an offset, or offsets by partition. `inclusive` says whether the record at a given
        offset is delivered; Pulsar's default is the next one (`startMessageIdInclusive`). Open deliveries are lost: they
        end with AckOutcome.LOST, handlers of `run` are cancelled. What follows waits until these have ended. Other
        consumers of the group go on where they are.

        After a queue was entered the seek waits until the first of its partitions have started. A partition that has not
        started, because its leader does not answer (`health()` names it), starts where it would without the seek. An offset
        outside the log is reset as by `out_of_range_reset`, by default to the earliest record.

        Raises ConfigError for other values and partitions, at the call if the queue has its partitions; OffsetLookupError with the partitions whose new position is not
        known, which go on where they are, while the others have been moved; TransportError, ClosedError.
        """
        return self._core.seek(position, inclusive=inclusive)

    # --- observability -----------------------------------------------------------------------------------------------------

    def statistics(self) -> QueueStatistics:
        """Return counts since the queue was opened, and the records of each partition by state."""
        return self._core.statistics()

    def health(self) -> Health:
        """Return the health of the queue's group member, with the queue's problems; it sends no request."""
        core = self._core
        health, failure = core.engine.health(core.problems()), core.receiver.failure
        if failure is None:
            return health
        ended = f"the queue has ended: {failure}"
        return replace(health, fatal=ended, not_ready=ended)

    def errors(self) -> ErrorReader:
        """Return a new async iterator of the errors that are retried: those of the group, CopyFailedError, and failed commits."""
        return self._core.engine.errors()


def _check_given(**arguments: object) -> None:
    """Raise TypeError if an argument of a consumer group is missing."""
    missing = [key for key, value in arguments.items() if value is None]
    if missing:
        names, plural = " and ".join(map(repr, missing)), "s" * (len(missing) > 1)
        raise TypeError(f"WorkQueue() missing {len(missing)} required positional argument{plural}: {names}")


def _check_no_group(**given: object) -> None:
    """Raise ConfigError for an argument of a consumer group beside a source."""
    for key, value in given.items():
        if value is not None:
            allowed = f"given by the source: WorkQueue(GroupSource(servers, group, topics, {key}=…), …)"
            if key in ("group_id", "topics"):
                allowed = "left out with a source, which has it"
            raise ConfigError(key, value, allowed)


add_foreign_names(WorkQueue, QUEUE)


# --- calls of other rooms -------------------------------------------------------------------------------------------------


def has_offsets(queue: WorkQueue) -> bool:
    """Whether the offsets of an open queue's records identify them, as those of Kafka. Raises ClosedError if it is not open."""
    return queue._core.engine.features.offsets
