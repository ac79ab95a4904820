"""Work queues: Pulsar's delivery semantics on the partitions of a consumer group.

Where to look, starting at the user's call:

- User-facing: `work_queue` (WorkQueue, a thin object over the engine in `engine`), `delivery`, `modes`, `policies`,
  `delivery_result` (what its calls return), `batch_receive`, `interceptors`, `statistics`. `settings` checks the arguments and what goes together.
- What is delivered next, without Kafka and without waiting: `dispatcher`, over the state of one partition in
  `partition_work` (`watcher`: its callbacks), with `turns` (between partitions, and between fresh records and retries) and `due_times` (delays).
- Waiting: `receiver` hands deliveries to tasks, `alarm` wakes the dispatcher in time, `workers` run the handlers of `run`
  (`worker_pools`: those of all local consumers; `failure_log`: the log of their exceptions). `handled_exception`: that of the
  `except` block around a nack.
- The engine on a consumer group: `queue_handler` has a `claim_feed` for each claim, which feeds the dispatcher
  (`receive_limits`) and ends with it;
  `ack_grouping` says when to commit; `crash_counts` counts deliveries in advance after a crash;
  `last_failures`: why a record that arrives after its last delivery is a dead letter; `idle_member`. The window that a commit
  contains is in `asyncgroup.ack_window` and `asyncgroup.offsets.window_encoding`.
- Copies: `publisher` writes them to the retry and the dead letter topic (`copies`: their headers; `dead_letter_breaker`),
  with a `copy_writer`: one by one, or with the acknowledgements of the originals in transactions (`copy_transactions`;
  `copy_queue`: which the next one takes; `copy_batch`: the copies of one). The topics: `topic_names`, `copy_topic_creation`
  (`topic_creation`), `retry_retention`, `retry_topic_cleanup`.
- `seeking`: the targets of `WorkQueue.seek`. `queue_health`: the problems that `WorkQueue.health` reports.
- Several consumers of one queue in one process: `queue_consumer`, over `local_consumers` and `asyncgroup.hashing.key_ranges`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.hashing.key_ranges import KeyRange
    from asyncgroup.threads import in_thread
    from asyncgroup.workqueue.batch_receive import DeliveryBatch
    from asyncgroup.workqueue.delivery import AckOutcome, Delivery, DeliveryState
    from asyncgroup.workqueue.group_engine.source import GroupSource
    from asyncgroup.workqueue.interceptors import QueueInterceptor
    from asyncgroup.workqueue.modes import Mode
    from asyncgroup.workqueue.policies import Backoff, BatchPolicy, Breaker, DeadLetter, RetryTopic
    from asyncgroup.workqueue.program import run_queue
    from asyncgroup.workqueue.queue_consumer import QueueConsumer
    from asyncgroup.workqueue.statistics import PartitionStatistics, QueueCounts, QueueStatistics
    from asyncgroup.workqueue.work_queue import WorkQueue
    from asyncgroup.workqueue.workers import DeliveryHandler

__all__ = [
    "AckOutcome",
    "Backoff",
    "BatchPolicy",
    "Breaker",
    "DeadLetter",
    "Delivery",
    "DeliveryBatch",
    "DeliveryHandler",
    "DeliveryState",
    "GroupSource",
    "KeyRange",
    "Mode",
    "PartitionStatistics",
    "QueueConsumer",
    "QueueCounts",
    "QueueInterceptor",
    "QueueStatistics",
    "RetryTopic",
    "WorkQueue",
    "in_thread",
    "run_queue",
]

_NAMES = {
    "batch_receive": ["DeliveryBatch"],
    "delivery": ["AckOutcome", "Delivery", "DeliveryState"],
    ".hashing.key_ranges": ["KeyRange"],
    ".threads": ["in_thread"],
    "group_engine.source": ["GroupSource"],
    "interceptors": ["QueueInterceptor"],
    "modes": ["Mode"],
    "policies": ["Backoff", "BatchPolicy", "Breaker", "DeadLetter", "RetryTopic"],
    "program": ["run_queue"],
    "queue_consumer": ["QueueConsumer"],
    "statistics": ["PartitionStatistics", "QueueCounts", "QueueStatistics"],
    "work_queue": ["WorkQueue"],
    "workers": ["DeliveryHandler"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
