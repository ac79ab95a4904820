"""The engine of a WorkQueue on a consumer group, which `work_queue.py` wraps in the public object.

It owns a group, a producer for copies, and the tasks that run the group and commit acknowledgements.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from asyncgroup.cluster import Cluster, as_cluster, client_of
from asyncgroup.cluster.bootstrap import BootstrapServers
from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.consumer.error_stream import ErrorReader
from asyncgroup.errors import AsyncGroupError, CommitFailedError, OffsetLookupError, UsageError
from asyncgroup.group.consumer_group import ConsumerGroup
from asyncgroup.group.health import Health
from asyncgroup.group.session import Session
from asyncgroup.group.topics import Pattern
from asyncgroup.lifecycle import cancel_and_wait, start_task, wait_shielded
from asyncgroup.model import MillisClock, RecordMetadata, TopicPartition
from asyncgroup.offsets.metadata_limit import fetch_metadata_limit
from asyncgroup.producer import Producer
from asyncgroup.producer.producer import watch_retries
from asyncgroup.workqueue.alarm import Alarm
from asyncgroup.workqueue.delivery import Delivery
from asyncgroup.workqueue.delivery_times import DeliveryTimes
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.group_engine.ack_grouping import AckGrouping
from asyncgroup.workqueue.group_engine.claim_feed import FeedParts
from asyncgroup.workqueue.group_engine.claim_window import commit_windows
from asyncgroup.workqueue.group_engine.copies import due_at, earlier_attempts, ordering_key_by
from asyncgroup.workqueue.group_engine.copy_topic_creation import CopyTopicCreation
from asyncgroup.workqueue.group_engine.copy_transactions import CopyTransactions
from asyncgroup.workqueue.group_engine.copy_writer import CopyWriter, DirectCopies, transactions_config
from asyncgroup.workqueue.group_engine.exclusive_group import check_is_holder, check_not_busy
from asyncgroup.workqueue.group_engine.idle_member import grace, known_partitions
from asyncgroup.workqueue.group_engine.queue_handler import QueueHandler
from asyncgroup.workqueue.group_engine.queue_health import queue_health
from asyncgroup.workqueue.group_engine.retry_retention import warn_of_retention
from asyncgroup.workqueue.group_engine.retry_topic_cleanup import RetryTopicCleanup
from asyncgroup.workqueue.group_engine.seeking import SeekTarget, find_offsets
from asyncgroup.workqueue.group_engine.shared_topics import is_shared
from asyncgroup.workqueue.group_engine.topic_names import CopyTopics, subscribed_topics
from asyncgroup.workqueue.interceptors import QueueInterceptors
from asyncgroup.workqueue.local_consumers import LocalConsumer
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.publisher import TopicPublisher
from asyncgroup.workqueue.queue_consumer import LocalDispatch, QueueConsumer
from asyncgroup.workqueue.receive_limits import ReceiveLimits
from asyncgroup.workqueue.receiver import Deliveries, Receiver
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.statistics import QueueStatistics
from asyncgroup.workqueue.watcher import Watcher
from asyncgroup.workqueue.worker_pools import WorkerPools
from asyncgroup.workqueue.workers import DeliveryHandler, Workers

__all__ = ["QueueEngine"]

_log = logging.getLogger("asyncgroup.workqueue")

SEND_SHARE: Final = 0.9
"""The part of `delivery_timeout` for which transactional copies wait at most.

Then it is known which partitions have not answered.
"""


class QueueEngine(Watcher):
    """The parts of an open queue, and what follows from the events of its dispatcher."""

    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        group_id: str,
        topics: list[str] | Pattern,
        copy_topics: CopyTopics,
        settings: QueueSettings,
        config: ConsumerConfig,
        producer_config: ProducerConfig,
        hooks: Iterable[object],
        interceptors: QueueInterceptors,
        clock: MillisClock,
    ) -> None:
        self.group_id = group_id
        self.settings = settings
        self._topics = topics
        self._copy_topics = copy_topics
        self._config = config
        self._interceptors = interceptors
        self.cluster, self._owns_cluster = as_cluster(bootstrap_servers, config, hooks)
        self._client = client_of(self.cluster)
        self.group = ConsumerGroup(self.cluster, group_id, config)
        self._grouping = AckGrouping(
            settings.ack_group_time, settings.ack_group_size, self._commit, self._is_commit_worth
        )
        self._copies = self._make_copies(producer_config)
        policy = settings.dead_letter_policy
        self._publisher = TopicPublisher(
            self._copies,
            group_id,
            retry_topic=copy_topics.retry,
            dead_letter_topic=copy_topics.dead_letter,
            max_redeliveries=None if policy is None else policy.max_redeliveries,
            breaker=None if policy is None else policy.breaker,
            now_ms=clock,
            on_error=self._report,
            on_dead_letter=self._on_dead_letter,
            on_trip=self._end,
        )
        loop = asyncio.get_running_loop()
        self.dispatcher = self._publisher.queue = Dispatcher(
            settings.mode,
            loop.time,
            self._publisher,
            settings.nack_backoff.delay,
            watcher=self,
            ack_timeout=settings.ack_timeout,
            retry_share=settings.retry_share,
            allow_out_of_order=settings.allow_out_of_order,
            ordering_key=ordering_key_by(settings.ordering_key),
            delivery_times=DeliveryTimes(
                partial(due_at, copy_topics.retry, delays_all=not settings.mode.in_order), clock
            ),
            earlier_attempts=earlier_attempts,
        )
        interceptors.dispatcher = self.dispatcher
        turns = self.dispatcher.turns
        self.receiver = Receiver(group_id, self.dispatcher.take, lambda: turns.ready, interceptors)
        self._alarm = Alarm(self.dispatcher)
        self._pools = WorkerPools(self.dispatcher)
        self._local = LocalDispatch(group_id, self.dispatcher, interceptors, self._pools)
        self.checks_acks = bool(interceptors) or self._publisher.breaker is not None
        self.on_done = self._grouping.note  # type: ignore[method-assign]  # called for each record
        self._handler: QueueHandler | None = None
        self._runs = False
        self._tasks: list[asyncio.Task[None]] = []
        self._has_session = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._creator = asyncio.current_task()
        self._creation = CopyTopicCreation(
            self._client, group_id, topics, copy_topics, settings, self._report
        )
        self._cleanup: RetryTopicCleanup | None = None

    def __repr__(self) -> str:
        state = "closed" if self.receiver.is_ended else "open"
        return f"<WorkQueue {self.group_id!r}, {self.settings.mode.value}: {state}, {self.dispatcher!r}>"

    # --- open -------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, create the topics of copies, join the group. Raises ConsumerBusy, and what entering a client raises."""
        if self._owns_cluster:
            await self.cluster.__aenter__()
        try:
            if self.settings.mode is Mode.EXCLUSIVE:
                await check_not_busy(
                    self._client, self.group_id, group_instance_id=self._config.group_instance_id
                )
            if any(self._copy_topics):
                await self._creation.create()
                self._cleanup = await self._make_cleanup()
                await self._copies.open()
                self._start(self._creation.run(), "topics of copies")
            if (retry := self._copy_topics.retry) is not None and retry not in self._creation.missing:
                self._start(warn_of_retention(self._client, self.group_id, retry), "retention")
            limit = await fetch_metadata_limit(self._client)
            await self.group.__aenter__()
            self._handler = self._make_handler(limit)
            self._start(self._grouping.run(), "acknowledgements")
            if self._cleanup is not None:
                self._start(self._cleanup.run(), "retry topic")
            self._start(self._run_group(self._handler), "group")
            if self.settings.mode is Mode.EXCLUSIVE:
                await self._wait_for(self._has_session)
        except BaseException:
            await self.aclose()
            raise

    def _make_copies(self, config: ProducerConfig) -> CopyWriter:
        if not self.settings.transactional_copies:
            return DirectCopies(self._make_producer(config))
        named = transactions_config(config, self._config, self.group_id, self._client.random)
        return CopyTransactions(
            self._client,
            self.group_id,
            partial(self._make_producer, named),
            time_limit=named.transaction_timeout,
            # a send that fails by itself says less of its partition
            send_limit=SEND_SHARE * named.delivery_timeout,
            raises_fenced=config.transactional_id is not None,
            window_of=lambda tp: None if self._handler is None else self._handler.window_of(tp),
            on_error=self._report,
            on_failure=self._end,
            on_end=self._grouping.note,
        )

    def _make_producer(self, config: ProducerConfig) -> Producer:
        producer = Producer(self.cluster, config)
        watch_retries(producer, self._on_copy_retry)
        return producer

    def _on_copy_retry(self, topic: str, error: Exception) -> None:
        self._copies.note_retry(topic)
        self._publisher.note_retry(topic, error)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(start_task(work, name=f"work queue {self.group_id}: {name}"))

    def _make_handler(self, metadata_limit: int) -> QueueHandler:
        parts = FeedParts(
            self.settings,
            self.dispatcher,
            self.receiver,
            self._publisher,
            self._pools,
            self._local,
            ReceiveLimits(self.settings),
            retry_topic=self._copy_topics.retry,
            on_copy_of_other_group=self._on_copy_of_other_group,
            max_poll_interval=self._config.max_poll_interval,
            commits_start=self._config.auto_offset_reset != "earliest",
            begins_at_end=self._config.auto_offset_reset == "latest",
            metadata_limit=metadata_limit,
            idle_grace=grace(self._config),
            partition_count=partial(
                known_partitions, self._client, subscribed_topics(self._topics, self._copy_topics.retry)
            ),
        )
        return QueueHandler(parts, self._interceptors, self._check_session)

    async def _make_cleanup(self) -> RetryTopicCleanup | None:
        """Return what deletes the copies that are done.

        None without a retry topic, if other groups may need them, or if a lost commit would skip copies.
        """
        retry, topic = self.settings.retry, self._copy_topics.retry
        if retry is None or topic is None:
            return None
        has_others = await is_shared(self._client, retry, self._topics, self.group_id)
        if has_others or self._config.out_of_range_reset != "earliest":
            _log.info(
                "group %s: nothing is deleted from retry topic %r: %s",
                self.group_id,
                topic,
                "other groups may use it"
                if has_others
                else f"out_of_range_reset is {self._config.out_of_range_reset!r}, not 'earliest'",
            )
            return None
        return RetryTopicCleanup(self._client, self.group_id, topic, self._committed)

    def _on_copy_of_other_group(self) -> None:
        """Delete nothing more from the retry topic: the copies of the other group have to stay."""
        if self._cleanup is not None and self._cleanup.stop():
            _log.warning(
                "group %s: nothing is deleted from retry topic %r any more: it has copies of other groups",
                self.group_id,
                self._copy_topics.retry,
            )

    def _committed(self) -> dict[TopicPartition, int]:
        """Return the committed offsets of the partitions that the group has assigned."""
        feeds = {} if self._handler is None else self._handler.feeds
        return {tp: feed.window.committed for tp, feed in feeds.items()}

    async def _check_session(self, session: Session) -> None:
        if self.settings.mode is Mode.EXCLUSIVE:
            await check_is_holder(self._client, session)
        self._has_session.set()

    async def _wait_for(self, event: asyncio.Event) -> None:
        """Wait for an event of the first session. Raises what ends the queue: ConsumerBusy if another member holds the group."""
        waiting = start_task(event.wait())
        running = self._tasks[-1]
        try:
            await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(waiting)
        if not event.is_set():
            self.receiver.check_open()

    # --- the group ----------------------------------------------------------------------------------------------------------

    async def _run_group(self, handler: QueueHandler) -> None:
        retry_topic = self._copy_topics.retry
        if retry_topic is not None:  # the sources are read also if it could not be created
            self.group._engine._source.optional_topics.add(retry_topic)
        try:
            await self.group.run(subscribed_topics(self._topics, retry_topic), handler)
        except Exception as error:  # noqa: BLE001  raised to those that receive
            self._end(error)
        else:
            self._end(None)

    def _end(self, failure: BaseException | None) -> None:
        self.dispatcher.is_open = False
        self.receiver.end(failure)
        self._local.end(failure)

    async def _commit(self) -> None:
        """Commit the acknowledgements; a failure is reported, and repeated with the next ones or by the group."""
        handler = self._handler
        if handler is None or (session := handler.session) is None:
            return
        try:
            await commit_windows(session)
        except CommitFailedError as error:
            self._report(error)
            _log.warning("group %s: %s", self.group_id, error)
        except UsageError:  # the session has ended: its last commit had them
            pass
        except Exception as error:  # noqa: BLE001  a bug: without commits, everything would be delivered again
            _log.exception("%r: bug", self)
            self._end(error)
            return
        handler.note_commit()
        if self._cleanup is not None:
            self._cleanup.note_commit()

    def _is_commit_worth(self, acks: int) -> bool:
        return self._handler is None or self._handler.is_commit_worth(acks)

    def _report(self, error: AsyncGroupError) -> None:
        self.group._engine._errors.put(error)

    # --- events of the dispatcher --------------------------------------------------------------------------------------------

    def on_ready(self) -> None:
        """Wake tasks that wait for a delivery."""
        if self._local.is_used:
            self._local.dispatch()
        else:
            self.receiver.on_ready()

    def on_due(self, time: float) -> None:
        """Wake the dispatcher at this time."""
        self._alarm.schedule(time)

    def on_expired(self, delivery: Delivery) -> bool:
        """Cancel the handler of a delivery whose ack timeout has passed."""
        self._interceptors.on_ack_timeout(delivery)
        return self._pools.on_expired(delivery)

    def before_ack(self, delivery: Delivery) -> None:
        """Ask the interceptors."""
        self._interceptors.before_ack(delivery)
        self._publisher.note_ack()

    def on_nack(self, delivery: Delivery, error: BaseException | None) -> None:
        """Call the interceptors."""
        self._interceptors.on_nack(delivery, error)

    def _on_dead_letter(self, delivery: Delivery, metadata: RecordMetadata, reason: str) -> None:
        _log.info("dead letter %s-%d@%d: %r, %s", *metadata[:3], delivery, reason)
        self._interceptors.on_dead_letter(delivery, reason)

    # --- use ----------------------------------------------------------------------------------------------------------------

    async def run(self, handle: DeliveryHandler) -> None:
        """See `WorkQueue.run`."""
        self.check_no_consumers("run")
        if self._runs:
            raise UsageError(f"run() of work queue {self.group_id!r} was called twice: it runs already")
        self.receiver.check_open()
        settings = self.settings
        workers = Workers(
            self.dispatcher,
            self.receiver,
            handle,
            settings.concurrency,
            cancels_expired=settings.on_ack_timeout == "cancel",
        )
        self._runs = True
        try:
            await self._pools.run(workers)
        finally:
            self._runs = False

    def check_no_consumers(self, call: str) -> None:
        """Raise UsageError if the queue is read by local consumers."""
        if self._local.is_used:
            raise UsageError(
                f"{call}() of work queue {self.group_id!r}: it has consumers (queue.consumer()), read those"
            )

    def consumer(self, local: LocalConsumer, concurrency: int | None) -> QueueConsumer:
        """See `WorkQueue.consumer`."""
        self.receiver.check_open()
        if self._runs or self.receiver.is_read or self.receiver.has_waiters:
            raise UsageError(
                f"consumer() of work queue {self.group_id!r}: the queue itself is read already; read its consumers instead"
            )
        settings = self.settings
        return QueueConsumer(
            self._local,
            local,
            settings.concurrency if concurrency is None else concurrency,
            cancels_expired=settings.on_ack_timeout == "cancel",
        )

    @property
    def paused(self) -> bool:
        """See `WorkQueue.paused`."""
        return not self.dispatcher.is_open and not self.receiver.is_ended

    def pause(self, *, paused: bool) -> None:
        """See `WorkQueue.pause`."""
        self.receiver.check_open()
        self.dispatcher.is_open = not paused
        self.on_ready()

    def deliveries(self) -> Deliveries:
        """See `WorkQueue.__aiter__`."""
        self.check_no_consumers("async for")
        return Deliveries(self.receiver)

    async def seek(self, target: SeekTarget, *, inclusive: bool) -> None:
        """See `WorkQueue.seek`."""
        self.receiver.check_open()
        handler = self._handler
        assert handler is not None
        await self._wait_for(handler.has_claims)
        feeds = handler.feeds
        isolation = self._config.isolation_level
        offsets, errors = await find_offsets(
            self._client, target, list(feeds), isolation, inclusive=inclusive
        )
        for tp, offset in offsets.items():
            if tp in feeds:  # else it was revoked during the lookup
                feeds[tp].seek(offset)
        if failed := {tp: error for tp, error in errors.items() if tp in feeds}:
            raise OffsetLookupError(failed)

    def errors(self) -> ErrorReader:
        """See `WorkQueue.errors`."""
        return self.group.errors()

    def health(self) -> Health:
        """See `WorkQueue.health`."""
        failure = self.receiver.failure
        return queue_health(
            self.group.health(), self._handler, self._publisher, self._creation, self._local.gaps, failure
        )

    def statistics(self) -> QueueStatistics:
        """See `WorkQueue.statistics`."""
        feeds = {} if self._handler is None else self._handler.feeds
        return QueueStatistics(
            counts=replace(self.dispatcher.counts),
            partitions=tuple(feeds[tp].statistics() for tp in sorted(feeds)),
            handlers=self._pools.busy,
            at_close=() if self._handler is None else self._handler.at_close(),
        )

    # --- close --------------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """See `WorkQueue.aclose`."""
        self._end(None)
        self._local.withdraw()
        self._release_own()
        if self._closing is None:
            self._closing = start_task(self._close(), name=f"work queue {self.group_id}: close")
        if self._pools.is_caller:
            return  # the close waits for this handler
        await wait_shielded(self._closing)

    def _release_own(self) -> None:
        """Give back the deliveries of the closing task, which cannot end them while it waits here; other tasks have time.

        If the task that has received a delivery has ended (`asyncio.wait_for` before Python 3.12 receives in a separate
        task), the one that entered the queue counts.
        """
        current = asyncio.current_task()
        for work in list(self.dispatcher.works.values()):
            for delivery in reversed(list(work.in_hand.values())):
                reader = delivery._reader
                if reader is None or reader.done():
                    reader = self._creator
                is_own = reader is None or reader is current or reader.done()
                if is_own and not self._pools.has(delivery):
                    self.dispatcher.release(delivery)

    async def _close(self) -> None:
        try:
            await self.group.aclose()
        finally:
            await cancel_and_wait(*self._tasks)
            await self._publisher.aclose()
            self._alarm.close()
            await self._copies.aclose()
            if self._owns_cluster:
                await self.cluster.aclose()
