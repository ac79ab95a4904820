"""PulsarConsumeTransformProduce: transforms the messages of a topic exactly once, as ConsumeTransformProduce does on Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

from asyncgroup.checks import DURATION, check_count, is_async, timedelta_hint
from asyncgroup.errors import AsyncGroupError, ConfigError, TransportError, UsageError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import await_shared, cancel_and_wait, mark_retrieved, start_task, wait_shielded
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.transactions.errors import PulsarTransactionError, PulsarTransactionTimedOut
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["PulsarConsumeTransformProduce", "PulsarTransactionOutput", "PulsarTransformFunction"]

_log = escaping_logger("asyncgroup.pulsar")


class _Producers:
    """The producers of the output, one for each topic, opened with its first message."""

    def __init__(self, client: PulsarClient, config: PulsarProducerConfig | None) -> None:
        self._client = client
        self._config = config
        self._opening: dict[TopicName, asyncio.Task[PulsarProducer]] = {}

    async def get(self, topic: str) -> PulsarProducer:
        """Return the producer of a topic. Raises as the opening of a PulsarProducer."""
        name = TopicName.parse(topic)
        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = start_task(self._open(name), name=f"producer of {topic}")
            opening.add_done_callback(mark_retrieved)
        return await await_shared(opening)

    async def _open(self, name: TopicName) -> PulsarProducer:
        producer = self._client.producer(str(name), self._config)
        try:
            await producer.__aenter__()
        except BaseException:
            del self._opening[name]
            raise
        return producer

    async def aclose(self) -> None:
        """Close them, also those that are being opened."""
        openings = list(self._opening.values())
        await cancel_and_wait(*(each for each in openings if not each.done()))
        opened = [each.result() for each in openings if not each.cancelled() and each.exception() is None]
        await wait_shielded(asyncio.gather(*(producer.aclose(drain=False) for producer in opened)))


class PulsarTransactionOutput:
    """Writes messages in the transaction that also acknowledges a batch; valid until the transform function returns.

    When the transaction has to be aborted, the methods raise PulsarTransactionAborted. The batch is delivered again, so the
    function should let that error pass.
    """

    def __init__(self, producers: _Producers, transaction: PulsarTransaction) -> None:
        self._producers = producers
        self._transaction = transaction
        self._is_open = True

    def __repr__(self) -> str:
        return f"<PulsarTransactionOutput of {self._transaction!r}>"

    async def enqueue(self, topic: str, value: bytes | None, **options: Any) -> None:
        """Write a message, waiting only for room, with the options of `PulsarProducer.enqueue`; the commit waits for its receipt."""
        producer = await self._producer(topic)
        await producer.enqueue(value, **options, transaction=self._transaction)

    async def send(self, topic: str, value: bytes | None, **options: Any) -> MessageId:
        """Write a message and wait until it is stored, with the options of `PulsarProducer.send`; it is not committed yet."""
        producer = await self._producer(topic)
        return await producer.send(value, **options, transaction=self._transaction)

    async def _producer(self, topic: str) -> PulsarProducer:
        if not self._is_open:
            raise UsageError(f"{self!r} was used after its function had returned")
        return await self._producers.get(topic)

    def _close(self) -> None:
        self._is_open = False


PulsarTransformFunction: TypeAlias = Callable[
    [Sequence[PulsarMessage], PulsarTransactionOutput], Coroutine[Any, Any, None]
]
"""Transforms a batch: writes its output."""


_OF_TRANSACTIONS: Final = (
    ServerError.TRANSACTION_CONFLICT,
    ServerError.INVALID_TXN_STATUS,
    ServerError.TRANSACTION_NOT_FOUND,
)


def _is_final(cause: BaseException | None) -> bool:
    """Whether a repetition cannot change the cause of a failure: a broker refuses a message, or a topic."""
    if isinstance(cause, PulsarServerError):
        return not cause.retriable and cause.code not in _OF_TRANSACTIONS
    return isinstance(cause, UsageError)


def _repeat(consumer: PulsarTopicConsumer, messages: Sequence[PulsarMessage]) -> None:
    """Have messages delivered again that no transaction has acknowledged."""
    taken: dict[int, list[tuple[MessageId, int]]] = {}
    for message in messages:
        taken.setdefault(message.partition, []).append((message.message_id, message.attachment))
    for each in consumer.partitions:
        each.outcomes.repeat(taken.get(each.partition, ()))


class PulsarConsumeTransformProduce:
    """Transforms messages exactly once: the output of a batch and its acknowledgements are one transaction.

        async def transform(batch: Sequence[PulsarMessage], output: PulsarTransactionOutput) -> None:
            for message in batch:
                await output.enqueue("shouted", (message.value or b"").upper(), key=message.key)

        await PulsarConsumeTransformProduce(transform).run("pulsar://localhost:6650", "spoken", "shouting")

    `transform` is an async function, called for one batch after the other. Consumers of the output see that of each message once,
    also if processes are killed and connections end; and if brokers are killed that have `managedLedgerDefaultMarkDeleteRateLimit=0` in
    their configuration (without it Pulsar 4.2.4 may forget a commit that it has confirmed). A batch of an aborted transaction is
    delivered again, perhaps to another consumer of the subscription. If the topics of the output have no
    deduplication (`brokerDeduplicationEnabled`, or the policy of their namespace), a receipt that is lost with its connection aborts.

    - `producer_config`, `consumer_config`: of the producers of the output, and of the consumer.
    - `timeout`: seconds of a transaction; the function is cancelled then, and the batch is repeated.
    - `max_records`, `max_bytes`: limits of a batch.
    - `max_failures`: transactions in a row that may fail (brokers, conflicts, timeouts) before the error is raised.
    """

    def __init__(
        self,
        transform: PulsarTransformFunction,
        producer_config: PulsarProducerConfig | None = None,
        *,
        consumer_config: PulsarConsumerConfig | None = None,
        timeout: float = 10.0,
        max_records: int = 500,
        max_bytes: int = 1 << 20,
        max_failures: int = 10,
    ) -> None:
        if not is_async(transform):
            raise ConfigError("transform", transform, "an async function (batch, output)")
        if not DURATION[0](timeout):
            raise ConfigError("timeout", timeout, DURATION[1] + timedelta_hint(timeout, DURATION[1]))
        for key, value in (
            ("max_records", max_records),
            ("max_bytes", max_bytes),
            ("max_failures", max_failures),
        ):
            check_count(key, value)
        self._transform = transform
        self._producer_config = PulsarProducerConfig.of(producer_config)
        self._consumer_config = PulsarConsumerConfig.of(consumer_config)
        self._timeout = timeout
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_failures = max_failures

    def __repr__(self) -> str:
        return f"<PulsarConsumeTransformProduce {self._transform!r}>"

    async def run(
        self,
        client: PulsarClient | str,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionType | str = SubscriptionType.FAILOVER,  # noqa: A002  Pulsar's name
    ) -> None:
        """Transform the messages of a topic until the caller is cancelled; `client` is open, or a service URL.

        Raises what the function raises, after its transaction was aborted; TransactionsNotEnabled; PulsarServerError and others that a
        repetition cannot change; after `max_failures` the last failure.
        """
        async with AsyncExitStack() as stack:
            if isinstance(client, str):
                client = await stack.enter_async_context(PulsarClient(client))
            producers = _Producers(client, self._producer_config)
            consumer = await stack.enter_async_context(
                client.subscribe(topic, subscription, type=type, config=self._consumer_config)
            )
            stack.push_async_callback(producers.aclose)
            retry = RetryLoop(client._inner.new_backoff(), retries=self._max_failures)
            while True:
                batch = await consumer.receive_batch(self._max_records, self._max_bytes, max_wait=0.0)
                # an aborted transaction and a reconnect may both have brought a message again: their transaction would count it twice
                batch = list({message.message_id: message for message in batch}.values())
                error = await self._run_transaction(client, consumer, producers, batch)
                if error is None:
                    retry.reset()
                    retry.tries = 0
                    continue
                _log.warning("%s: a transaction failed, its batch is repeated: %s", consumer.name, error)
                await retry.pause(error)

    async def _run_transaction(
        self,
        client: PulsarClient,
        consumer: PulsarTopicConsumer,
        producers: _Producers,
        batch: Sequence[PulsarMessage],
    ) -> AsyncGroupError | None:
        """Return why the transaction has failed, if its batch is to be repeated."""
        transaction = client.transaction(self._timeout)
        acked = 0
        try:
            async with transaction:
                await self._call(producers, transaction, batch)
                for message in batch:
                    consumer.ack(message, transaction=transaction)
                    acked += 1
        except (PulsarTransactionError, TransportError, PulsarServerError) as error:
            if _is_final(error.__cause__ if isinstance(error, PulsarTransactionError) else error):
                raise
            # the abort delivers those again that were acknowledged
            _repeat(consumer, batch[acked:])
            return error
        return None

    async def _call(
        self, producers: _Producers, transaction: PulsarTransaction, batch: Sequence[PulsarMessage]
    ) -> None:
        output = PulsarTransactionOutput(producers, transaction)
        try:
            async with asyncio.timeout(self._timeout) as limit:
                await self._transform(batch, output)
        except TimeoutError:
            if limit.expired():
                raise PulsarTransactionTimedOut(
                    transaction.txn_id, f"the function has not returned within {self._timeout:g} s"
                ) from None
            raise
        finally:
            output._close()
