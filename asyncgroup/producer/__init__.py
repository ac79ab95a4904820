"""Producer: batches per partition, idempotent by default, transactions.

The way of a record, by rooms:

- `producer` checks it (`arguments`), and decides which way it takes.
- `records`: it waits for memory, passes the `interceptors`, and is put into its partition by the rules of `partitioners`.
- `batches`: it is appended to a batch of its partition, and the batches to send now are planned.
- `sending`: the batches are sent, and get their results.

Transactions: `transaction` is the context manager, and `transaction_client` begins and ends them; `transactions` has their state,
and the requests to the coordinator. `open_transaction` ends a transaction that another process left open.
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
