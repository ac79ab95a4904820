"""ConsumerGroupEngine: the engine of a work queue on a consumer group.

It owns the group, the producer of copies, and the tasks that run the group and commit acknowledgements.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from asyncgroup.cluster import as_cluster
from asyncgroup.config import ProducerConfig
from asyncgroup.consumer.error_stream import ErrorReader
from asyncgroup.consumer.list_offsets import parse_start
from asyncgroup.errors import AsyncGroupError, CommitFailedError, OffsetLookupError, UsageError
from asyncgroup.group.consumer_group import ConsumerGroup
from asyncgroup.group.health.health import Health
from asyncgroup.group.health.problems import MemberProblem, ProblemKind
from asyncgroup.group.sessions.session import Session
from asyncgroup.hooks import delivery_listeners
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import MillisClock, Record, TopicPartition, wall_clock
from asyncgroup.offsets.metadata_limit import fetch_metadata_limit
from asyncgroup.producer import Producer
from asyncgroup.producer.arguments import check_headers
from asyncgroup.workqueue.copies import CopyHeaders, due_at, ordering_key
from asyncgroup.workqueue.engine import OpenQueue
from asyncgroup.workqueue.group_engine.claim_feed import FeedParts
from asyncgroup.workqueue.group_engine.claim_window import AckGrouping, commit_windows
from asyncgroup.workqueue.group_engine.copy_topic_creation import CopyTopicCreation
from asyncgroup.workqueue.group_engine.copy_transactions import CopyTransactions
from asyncgroup.workqueue.group_engine.copy_writer import DirectCopies, GroupCopyWriter, transactions_config
from asyncgroup.workqueue.group_engine.crash_counts import CrashedClaims
from asyncgroup.workqueue.group_engine.exclusive_group import check_is_holder, check_not_busy
from asyncgroup.workqueue.group_engine.idle_member import grace, known_partitions
from asyncgroup.workqueue.group_engine.queue_handler import QueueHandler
from asyncgroup.workqueue.group_engine.retry_topics import RetryTopicCleanup, is_shared, warn_of_retention
from asyncgroup.workqueue.group_engine.seeking import SeekTarget, find_offsets, known_offsets
from asyncgroup.workqueue.group_engine.source import FEATURES, GroupPlan
from asyncgroup.workqueue.group_engine.topic_names import subscribed_topics
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.receive_limits import ReceiveLimits
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.statistics import PartitionStatistics

__all__ = ["ConsumerGroupEngine"]

_log = logging.getLogger("asyncgroup.workqueue")

SEND_SHARE: Final = 0.9
"""The part of `delivery_timeout` for which transactional copies wait at most.

Then it is known which partitions have not answered.
"""

_IDLE: Final = {
    ProblemKind.CLOSED: "the queue is closed",
    ProblemKind.NOT_CONSUMING: "the queue reads nothing: its group member does not run",
    ProblemKind.LEAVING: "the queue reads nothing: its group member is leaving the group",
}
"""Problems of a member that consumes nothing, in the words of its queue, which has no consume()."""


class ConsumerGroupEngine:
    """The Engine of a queue on a consumer group; created on the event loop, it does nothing before `open`.

    `clock` is the time of day in ms, from which the delays of copies count.
    """

    features = FEATURES

    def __init__(self, plan: GroupPlan, settings: QueueSettings, clock: MillisClock) -> None:
        source = plan.source
        self.name = source.group_id
        self.retry_topic = plan.retry_topic
        self.dead_letter_topic = plan.dead_letter_topic
        self._source = source
        self._topics = plan.topics
        self._settings = settings
        self._config = plan.config
        self.cluster, self._owns_cluster = as_cluster(source.bootstrap_servers, plan.config, source.hooks)
        self._client = self.cluster._inner
        self.group = ConsumerGroup(self.cluster, self.name, plan.config)
        self._grouping = AckGrouping(
            settings.ack_group_time, settings.ack_group_size, self._commit, self._is_commit_worth
        )
        self.copies: GroupCopyWriter = self._make_copies(plan.producer_config)
        self.hooks = self._client.hooks
        self.listeners = delivery_listeners(self.hooks)
        self.copy_format = CopyHeaders(self.name, clock, check_headers)
        self._queue: OpenQueue | None = None
        self._handler: QueueHandler | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._has_session = asyncio.Event()
        self._creation = CopyTopicCreation(
            self._client, self.name, plan.topics, plan.copy_topics, settings, self.report
        )
        self._cleanup: RetryTopicCleanup | None = None

    def __repr__(self) -> str:
        return f"<ConsumerGroupEngine {self.name!r}, {self.cluster!r}>"

    def ordering_key(self, record: Record) -> bytes | None:
        """Return the header `ag-ordering-key`, else the record's key."""
        return ordering_key(record)

    def due_at(self, record: Record) -> int | None:
        """Return the header `ag-deliver-at`; in the modes with an order only of copies in the retry topic."""
        return due_at(self.retry_topic, record, delays_all=not self._settings.mode.in_order)

    # --- open -------------------------------------------------------------------------------------------------------------

    async def open(self, queue: OpenQueue) -> None:
        """Connect, create the topics of copies, join the group. Raises ConsumerBusy, and what entering a client raises."""
        self._queue = queue
        if self._owns_cluster:
            await self.cluster.__aenter__()
        if self._settings.mode is Mode.EXCLUSIVE:
            await check_not_busy(self._client, self.name, group_instance_id=self._config.group_instance_id)
        if self.dead_letter_topic is not None:  # each queue with copies has one
            await self._creation.create()
            self._cleanup = await self._make_cleanup()
            await self.copies.open()
            self._start(self._creation.run(), "topics of copies")
        if (retry := self.retry_topic) is not None and retry not in self._creation.missing:
            self._start(warn_of_retention(self._client, self.name, retry), "retention")
        limit = await fetch_metadata_limit(self._client)
        await self.group.__aenter__()
        self._handler = self._make_handler(queue, limit)
        self._start(self._grouping.run(), "acknowledgements")
        if self._cleanup is not None:
            self._start(self._cleanup.run(), "retry topic")
        self._start(self._run_group(queue, self._handler), "group")
        if self._settings.mode is Mode.EXCLUSIVE:
            await self._wait_for(self._has_session)

    def _make_copies(self, config: ProducerConfig) -> GroupCopyWriter:
        if not self._source.transactional_copies:
            return DirectCopies(self._make_producer(config))
        named = transactions_config(config, self._config, self.name, self._client.random)
        return CopyTransactions(
            self._client,
            self.name,
            partial(self._make_producer, named),
            time_limit=named.transaction_timeout,
            # a send that fails by itself says less of its partition
            send_limit=SEND_SHARE * named.delivery_timeout,
            raises_fenced=config.transactional_id is not None,
            window_of=lambda tp: None if self._handler is None else self._handler.window_of(tp),
            on_error=self.report,
            on_failure=self._end,
            on_end=self._grouping.note,
        )

    def _make_producer(self, config: ProducerConfig) -> Producer:
        producer = Producer(self.cluster, config)
        producer._inner.watch_retries(self._on_copy_retry)
        return producer

    def _on_copy_retry(self, topic: str, error: Exception) -> None:
        self.copies.note_retry(topic)
        if self._queue is not None:
            self._queue.note_copy_retry(topic, error)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(start_task(work, name=f"work queue {self.name}: {name}"))

    def _make_handler(self, queue: OpenQueue, metadata_limit: int) -> QueueHandler:
        parts = FeedParts(
            self.name,
            queue,
            ReceiveLimits(self._settings),
            self._source.max_waiting,
            self._source.migrate_from,
            CrashedClaims(queue),
            note_ack=self._grouping.note,
            retry_topic=self.retry_topic,
            on_copy_of_other_group=self._on_copy_of_other_group,
            max_poll_interval=self._config.max_poll_interval,
            commits_start=self._config.auto_offset_reset != "earliest",
            begins_at_end=self._config.auto_offset_reset == "latest",
            metadata_limit=metadata_limit,
            idle_grace=grace(self._config),
            partition_count=partial(
                known_partitions, self._client, subscribed_topics(self._topics, self.retry_topic)
            ),
        )
        return QueueHandler(parts, self._check_session)

    async def _make_cleanup(self) -> RetryTopicCleanup | None:
        """Return what deletes the copies that are done.

        None without a retry topic, if other groups may need them, or if a lost commit would skip copies.
        """
        retry, topic = self._settings.retry, self.retry_topic
        if retry is None or topic is None:
            return None
        has_others = await is_shared(self._client, retry, self._topics, self.name)
        if has_others or self._config.out_of_range_reset != "earliest":
            _log.info(
                "group %s: nothing is deleted from retry topic %r: %s",
                self.name,
                topic,
                "other groups may use it"
                if has_others
                else f"out_of_range_reset is {self._config.out_of_range_reset!r}, not 'earliest'",
            )
            return None
        return RetryTopicCleanup(self._client, self.name, topic, self._committed)

    def _on_copy_of_other_group(self) -> None:
        """Delete nothing more from the retry topic: the copies of the other group have to stay."""
        if self._cleanup is not None and self._cleanup.stop():
            _log.warning(
                "group %s: nothing is deleted from retry topic %r any more: it has copies of other groups",
                self.name,
                self.retry_topic,
            )

    def _committed(self) -> dict[TopicPartition, int]:
        """Return the committed offsets of the partitions that the group has assigned."""
        feeds = {} if self._handler is None else self._handler.feeds
        return {tp: feed.window.committed for tp, feed in feeds.items()}

    async def _check_session(self, session: Session) -> None:
        if self._settings.mode is Mode.EXCLUSIVE:
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
            assert self._queue is not None
            self._queue.check_open()

    # --- the group ----------------------------------------------------------------------------------------------------------

    async def _run_group(self, queue: OpenQueue, handler: QueueHandler) -> None:
        if self.retry_topic is not None:  # the sources are read also if it could not be created
            self.group._inner.make_optional(self.retry_topic)
        try:
            await self.group.run(subscribed_topics(self._topics, self.retry_topic), handler)
        except Exception as error:  # noqa: BLE001  raised to those that receive
            queue.end(error)
        else:
            queue.end(None)

    def _end(self, failure: Exception) -> None:
        """End the queue with an error that is not retried."""
        if self._queue is not None:
            self._queue.end(failure)

    async def _commit(self) -> None:
        """Commit the acknowledgements; a failure is reported, and repeated with the next ones or by the group."""
        handler = self._handler
        if handler is None or (session := handler.session) is None:
            return
        try:
            await commit_windows(session)
        except CommitFailedError as error:
            self.report(error)
            _log.warning("group %s: %s", self.name, error)
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

    def report(self, error: AsyncGroupError) -> None:
        """Give an error that is retried to the readers of `errors`."""
        self.group._inner.report(error)

    def seek(self, target: SeekTarget, *, inclusive: bool) -> Coroutine[Any, Any, None] | None:
        """See `WorkQueue.seek`."""
        queue, handler = self._queue, self._handler
        assert queue is not None
        assert handler is not None
        queue.check_open()
        known = (
            known_offsets(target, handler.feeds, inclusive=inclusive) if handler.has_claims.is_set() else None
        )
        if known is None:
            if not isinstance(target, Mapping):
                parse_start(target, wall_clock)  # raises its error now
            return self._look_up_and_seek(handler, target, inclusive=inclusive)
        handler.seek(known)
        return None

    async def _look_up_and_seek(self, handler: QueueHandler, target: SeekTarget, *, inclusive: bool) -> None:
        await self._wait_for(handler.has_claims)
        offsets, errors = await find_offsets(
            self._client, target, list(handler.feeds), self._config.isolation_level, inclusive=inclusive
        )
        handler.seek(offsets)
        if failed := {tp: error for tp, error in errors.items() if tp in handler.feeds}:
            raise OffsetLookupError(failed)

    def errors(self) -> ErrorReader:
        """Return a new iterator of the errors that are retried."""
        return self.group.errors()

    def health(self, problems: Sequence[str]) -> Health:
        """Return the health of the group member with the problems of the queue and its partitions."""
        member = self.group.health()
        own = [] if self._handler is None else self._handler.problems()
        found = (*map(_of_queue, member.problems), *own, *self._creation.problems(), *problems)
        not_ready = member.not_ready and _of_queue(member.not_ready)
        return replace(member, problems=found, not_ready=not_ready)

    def statistics(self) -> tuple[tuple[PartitionStatistics, ...], tuple[PartitionStatistics, ...]]:
        """Return the partitions that are assigned, and those that a closed queue had last."""
        handler = self._handler
        if handler is None:
            return (), ()
        return tuple(handler.feeds[tp].statistics() for tp in sorted(handler.feeds)), handler.at_close()

    # --- close --------------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Leave the group when the open deliveries have ended, or `close_timeout` has passed; the last commit is done."""
        try:
            await self.group.aclose()
        finally:
            await cancel_and_wait(*self._tasks)

    async def aclose(self) -> None:
        """Close the producer of copies and the connections."""
        await self.copies.aclose()
        if self._owns_cluster:
            await self.cluster.aclose()


def _of_queue(problem: str) -> str:
    return _IDLE.get(problem.kind, problem) if isinstance(problem, MemberProblem) else problem
