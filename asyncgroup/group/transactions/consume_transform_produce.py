"""ConsumeTransformProduce: a handler that commits its output and the offsets of its input in the same transaction."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Final

from asyncgroup.checks import TEXT, check_count, check_duration_or_zero, is_async
from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.errors import ConfigError, DeliveryFailedError, UsageError
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.group.sessions.claim_source import ClaimSource
from asyncgroup.group.sessions.end_limits import reserve_for
from asyncgroup.group.sessions.handler import Handler
from asyncgroup.group.sessions.session import Session
from asyncgroup.group.transactions.session_transactions import (
    BatchLimits,
    Failures,
    SessionTransactions,
    TransformFunction,
)
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.producer import Producer

__all__ = ["ConsumeTransformProduce"]

TRANSACTION_TIMEOUT: Final = 10.0
"""Seconds of the transaction timeout without a `producer_config`, as in Kafka Streams (`StreamsConfig`): after a crash, the
next owners of the partitions wait so long for the offsets of the open transaction."""


class ConsumeTransformProduce(Handler):
    """Transforms records exactly once: output and offsets are committed in the same transactions (KIP-98, KIP-447).

        async def transform(batch: Batch, output: TransactionOutput) -> None:
            for record in batch:
                await output.enqueue("shouted", (record.value or b"").upper(), key=record.key)

        config = ConsumerConfig(isolation_level="read_committed")
        async with ConsumerGroup("localhost:9092", "shouting", config) as group:
            await group.run("spoken", ConsumeTransformProduce(transform))

    `transform` is an async function. It is called for each batch of a claim, one batch at a time for each claim, and writes with
    `output`. Readers with `read_committed` see each record's output once.

    The claims of a member share one producer and its transactions, as the tasks of a thread in Kafka Streams do. A transaction
    begins with a batch and ends `commit_interval` seconds later, when the batches that have begun are complete: a slow batch
    delays the commits of all claims. When a claim is revoked or the session ends, the transaction is committed within the time
    that handlers have; after that it is aborted. Batches of an aborted transaction are read again.

    - `producer_config`: of the producer, which uses the connections of the group. Without it the transaction timeout is 10 s.
      A `transactional_id` in it is used as it is, so it must be different in each member.
    - `transactional_id_prefix`: the transactional id is this (by default the group's id), followed by the member's
      `group_instance_id` or else by a random part. A static member that starts again aborts at once what it left open.
    - `commit_interval`: seconds; with 0 each transaction ends with the batches that were waiting for it.
    - `max_records`, `max_bytes`: limits of a batch, as for `Claim.batches`.
    - `max_failures`: failures in a row (of brokers, of the producer) after which the error is raised; batches are repeated
      until then.

    `run()` raises the function's own exception, after the transaction was aborted. Errors that a repetition cannot change (a
    record that is too large, missing authorization) are raised as TransactionAbortedError. After ProducerFencedError (a
    transaction that took longer than its timeout) and TransactionOutcomeUnknown the session ends, and the next one has a new
    producer and begins at the committed offsets; with a `transactional_id` of the user ProducerFencedError is raised, as
    another member may have the same.

    Marks and commits of the claims are not needed: `auto_commit` has no effect on them. One object belongs to one member.
    Raises ConfigError for invalid arguments; `run()` raises it unless `isolation_level` is `read_committed`, and for
    `chunks="assemble"`.
    """

    def __init__(
        self,
        transform: TransformFunction,
        producer_config: ProducerConfig | None = None,
        *,
        transactional_id_prefix: str | None = None,
        commit_interval: float = 0.1,
        max_records: int = 500,
        max_bytes: int = 1 << 20,
        max_failures: int = 10,
    ) -> None:
        if not is_async(transform):
            raise ConfigError("transform", transform, "an async function (batch, output)")
        check_duration_or_zero("commit_interval", commit_interval)
        for key, value in (
            ("max_records", max_records),
            ("max_bytes", max_bytes),
            ("max_failures", max_failures),
        ):
            check_count(key, value)
        self._transform = transform
        self._config = (
            ProducerConfig(transaction_timeout=TRANSACTION_TIMEOUT)
            if producer_config is None
            else ProducerConfig.of(producer_config)
        )
        self._prefix = _check_prefix(transactional_id_prefix, self._config)
        self._limits = BatchLimits(max_records, max_bytes, commit_interval)
        self._failures = Failures(max_failures, self._config.transactional_id is not None)
        self._random_part: str | None = None
        self._open_session: _OpenSession | None = None

    def __repr__(self) -> str:
        return f"<ConsumeTransformProduce {self._transform!r}: {self._open_session or 'not consuming'}>"

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        """Transform the batches of the claim until it ends. If the producer is not open yet, they wait for it."""
        assert self._open_session is not None
        assert self._open_session.session is session
        await self._open_session.transactions.consume(claim)

    # --- sessions -------------------------------------------------------------------------------------------------

    async def _open(self, session: Session, source: ClaimSource) -> None:
        """Create the producer, before the start offsets are fetched: that waits for transactions that it aborts here."""
        if self._open_session is not None:
            raise UsageError("a ConsumeTransformProduce belongs to one member: create one for each")
        _check_consumer(source.config)
        config = replace(
            self._config,
            transactional_id=self._transactional_id(source),
            close_timeout=min(self._config.close_timeout, _abort_seconds(source.config)),
        )
        producer = Producer(source.shared_cluster, config)
        transactions = SessionTransactions(
            session, source.cluster, producer, self._transform, self._limits, self._failures
        )
        self._open_session = _OpenSession(session, producer, transactions)
        await self._open_session.start()

    async def _close(self, session: Session) -> None:
        """Close the producer, which aborts its transaction if it is still open."""
        opened = self._open_session
        if opened is not None and opened.session is session:
            try:
                await opened.close()
            finally:
                self._open_session = None

    def _transactional_id(self, source: ClaimSource) -> str:
        """Return the id: the user's, or one that is unique among the members and the same in each session of this one."""
        if self._config.transactional_id is not None:
            return self._config.transactional_id
        if self._random_part is None:
            self._random_part = f"{source.cluster.random.getrandbits(128):032x}"
        unique = source.config.group_instance_id or self._random_part
        return f"{self._prefix or source.group_id}-{unique}"


def _abort_seconds(config: ConsumerConfig) -> float:
    """Return how long the end of a session waits for an abort, which may be all that is left to do.

    It waits twice: when the task that commits is cancelled, and when the producer is closed.
    """
    return min(reserve_for(config.close_timeout), reserve_for(config.rebalance_timeout)) / 2


def _check_consumer(config: ConsumerConfig) -> None:
    if config.isolation_level != "read_committed":
        allowed = "'read_committed' with ConsumeTransformProduce, else aborted records are also transformed"
        raise ConfigError("isolation_level", config.isolation_level, allowed)
    if config.chunks == "assemble":
        # an incomplete value holds the commit back, so that records after its first chunk are read again
        allowed = (
            "'as_is' with ConsumeTransformProduce: an incomplete value delays commits, but not the output"
        )
        raise ConfigError("chunks", config.chunks, allowed)


def _check_prefix(prefix: object, config: ProducerConfig) -> str | None:
    if prefix is None:
        return None
    if not isinstance(prefix, str) or not prefix:
        raise ConfigError("transactional_id_prefix", prefix, TEXT[1])
    if config.transactional_id is not None:
        raise ConfigError(
            "transactional_id_prefix", prefix, "None with a transactional_id in the producer_config"
        )
    return prefix


class _OpenSession:
    """The producer of a session, and the task that commits."""

    def __init__(self, session: Session, producer: Producer, transactions: SessionTransactions) -> None:
        self.session = session
        self.transactions = transactions
        self._producer = producer
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"{self.transactions!r}, {self._producer!r}"

    async def start(self) -> None:
        """Open the producer, which fences an earlier one with the same transactional id, and start the task."""
        await self._producer.__aenter__()
        self._task = start_task(self.transactions.run(), name=f"{self.session.group_id}: transactions")

    async def close(self) -> None:
        """Stop the task and close the producer."""
        if self._task is not None:
            await cancel_and_wait(self._task)
        with contextlib.suppress(DeliveryFailedError):  # the input of lost output is read again
            await self._producer.aclose()
