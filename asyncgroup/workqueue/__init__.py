"""Work queues: Pulsar's delivery semantics on the partitions of a consumer group, or on another source.

Where to look, starting at the user's call:

- User-facing: `work_queue` (WorkQueue), `settings` (each setting once), `sources` (what a queue reads), `delivery`,
  `delivery_result` (what its calls return), `delivery_state`, `modes`, `policies`, `batch_receive`, `interceptors`, `statistics`.
- `core` is an open queue: it delivers the records that its engine adds, and applies the outcomes. `engine` is the seam: what the
  core asks of an engine, what an engine asks of the core, and `partition_engine`, what both say of one partition. `closing` ends
  the partitions of engines without rebalances.
- What is delivered next, without a broker and without waiting: `dispatcher`, over the state of one partition in
  `partition_work`, with `ready_partitions` (in turn, and a share of the turns for retries), `orders` (of each mode), `due_times` (delays),
  `ack_timeouts`, `outcomes` (what the end of a delivery does) and `delivery_reports` (callbacks and hooks).
- Waiting: `receive_limits` says what a partition may hold, `receiver` gives deliveries to tasks, `dispatch_timer` wakes the dispatcher
  in time, `workers` run the handlers of `run`, and log their exceptions. `handled_exception`: that of the `except`
  block around a nack.
- Copies: `publisher` has them written to the retry and the dead letter topic (`copies`: their headers; `topic_names`;
  `dead_letters`: their rate, and why a record that arrives after its last delivery is one).
- Several consumers of one queue in one process: `queue_consumer`, over `local_consumers` and `asyncgroup.hashing.key_ranges`.
- `group_engine/` is the engine on a consumer group, `pulsar_engine/` that on a subscription of Pulsar;
  `asyncgroup.testing.memory_engine` the one over a list of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.hashing.key_ranges import KeyRange
    from asyncgroup.program import run_queue
    from asyncgroup.threads import in_thread
    from asyncgroup.workqueue.batch_receive import DeliveryBatch
    from asyncgroup.workqueue.delivery import AckOutcome, Delivery, DeliveryState
    from asyncgroup.workqueue.group_engine.source import GroupSource
    from asyncgroup.workqueue.interceptors import QueueInterceptor
    from asyncgroup.workqueue.modes import Mode
    from asyncgroup.workqueue.policies import Backoff, BatchPolicy, Breaker, DeadLetter, RetryTopic
    from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
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
    "PulsarSource",
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
    ".program": ["run_queue"],
    "pulsar_engine.source": ["PulsarSource"],
    "queue_consumer": ["QueueConsumer"],
    "statistics": ["PartitionStatistics", "QueueCounts", "QueueStatistics"],
    "work_queue": ["WorkQueue"],
    "workers": ["DeliveryHandler"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
