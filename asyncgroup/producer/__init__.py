"""Producer: batches per partition, retries that keep the order, Java's default partitioning.

A record passes through these modules: `producer` checks it (`arguments`) and waits for buffer memory (`buffer_memory`),
`router` and `route` choose its partition, `accumulator` appends it to a `batch`, `sender` sends the
batches of one leader in one request and acts on each partition's error code (`requests`).
`delivery_tracker` counts the lost records of `enqueue`, which have no future, until `flush` reports them.

Transactions: `transaction` is the context manager, `transaction_state` what is allowed when, `transaction_client` what
begins and ends them, `transaction_coordinator` and `transaction_requests` send requests and judge their error codes.
`open_transaction` ends a transaction that another process left open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.producer.interceptors import ProducerInterceptor, ProducerRecord
    from asyncgroup.producer.memory_budget import MemoryBudget
    from asyncgroup.producer.open_transaction import OpenTransaction, end_transaction
    from asyncgroup.producer.partitioners import Partitioner, TimedRoundRobin, TopicPartitioner
    from asyncgroup.producer.producer import Producer
    from asyncgroup.producer.transaction import Transaction

__all__ = [
    "MemoryBudget",
    "OpenTransaction",
    "Partitioner",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "TimedRoundRobin",
    "TopicPartitioner",
    "Transaction",
    "end_transaction",
]

_NAMES = {
    "interceptors": ["ProducerInterceptor", "ProducerRecord"],
    "memory_budget": ["MemoryBudget"],
    "open_transaction": ["OpenTransaction", "end_transaction"],
    "partitioners": ["Partitioner", "TimedRoundRobin", "TopicPartitioner"],
    "producer": ["Producer"],
    "transaction": ["Transaction"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
