"""Producer: batches per partition, idempotent by default, transactions.

The way of a record, by modules:

- `producer` checks it (`arguments`), adds the headers of `delivery_headers`, and decides which way it takes. `record_writer` is
  the short one; `send_steps` adds `interceptors`, hooks of each record, limits for each partition and sequence ids, with a
  `record_end` in place of the future; `chunking` splits large values. All wait for `PendingLimits` (`asyncgroup.memory`): the producer's own, and a
  `MemoryBudget` that producers share.
- `record_path` holds what follows. `router` looks topics up, and the `route` of a topic chooses a partition by the rules of
  `partitioners`. `accumulator` appends the record to a `batch` and plans which batches to send now; a `partition_queue`
  keeps the order of its partition, and the sequence numbers, under an id of `producer_ids`.
- `sender` sends the plan: `requests` builds Produce requests, `request_queue` sends them in order, `batch_compressor` compresses
  large batches on threads before.
- `batch_results` says what a response means for each batch (`requests` has the table of error codes). `delivery_tracker` counts
  the lost records of `enqueue`, which have no future, until `flush` reports them. `wake_ups` wakes the callers of `send`.

Transactions: `transaction` is the context manager, `transaction_state` what is allowed when, `produce_transaction` what the
sender may send and what the loss of a record means. `transaction_client` begins and ends them, `transaction_offsets` commits
offsets; `transaction_coordinator` sends their requests, and `transaction_requests` has the tables of error codes.
`open_transaction` ends a transaction that another process left open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.interceptor import ProducerRecord
    from asyncgroup.memory.memory_budget import MemoryBudget
    from asyncgroup.producer.open_transaction import OpenTransaction, end_transaction
    from asyncgroup.producer.partitioners import Partitioner, TimedRoundRobin, TopicPartitioner
    from asyncgroup.producer.producer import Producer
    from asyncgroup.producer.transaction import Transaction

__all__ = [
    "MemoryBudget",
    "OpenTransaction",
    "Partitioner",
    "Producer",
    "ProducerRecord",
    "TimedRoundRobin",
    "TopicPartitioner",
    "Transaction",
    "end_transaction",
]

_NAMES = {
    ".interceptor": ["ProducerRecord"],
    ".memory.memory_budget": ["MemoryBudget"],
    "open_transaction": ["OpenTransaction", "end_transaction"],
    "partitioners": ["Partitioner", "TimedRoundRobin", "TopicPartitioner"],
    "producer": ["Producer"],
    "transaction": ["Transaction"],
}
"""The public names of each module."""

_FORMER = {"ProducerInterceptor": "asyncgroup.Interceptor"}
"""Former names, and the new ones."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES, former=_FORMER)
