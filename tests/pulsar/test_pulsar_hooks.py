"""Hooks of a Pulsar client: the events that its connections, producers, consumers and queues report."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from asyncgroup import BatchResult, ConfigError, WorkQueue
from asyncgroup.errors import ClosedError, ConnectionLost, RequestTimedOut
from asyncgroup.hooks import EVENTS, Hooks
from asyncgroup.pulsar import (
    MessageId,
    PulsarClient,
    PulsarConsumerConfig,
    PulsarProducer,
    PulsarProducerConfig,
    PulsarProducerRecord,
    PulsarServerError,
    PulsarTransactionAborted,
    PulsarTransactionOutcomeUnknown,
    PulsarTransactionTimedOut,
)
from asyncgroup.pulsar.connection.reports import REQUEST_NAMES
from asyncgroup.pulsar.connection.requests import ANSWERS
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.workqueue import PulsarSource
from tests.pulsar.scripted import ScriptedPulsar, in_turn, late, no_answer, refuse
from tests.test_hooks import Checks

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOPIC = "persistent://public/default/orders"
HOST = "10.0.0.1"


class Recorder(Checks):
    """A hook that keeps all events, and checks the types of their values."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[Any, ...]] = []

    def check(self, event: str, *values: object) -> None:
        super().check(event, *values)
        self.events.append((event, *values))

    def named(self, *events: str) -> list[tuple[Any, ...]]:
        """Return the values of events."""
        return [values for event, *values in self.events if event in events]  # type: ignore[misc]


@pytest.fixture
def hook() -> Recorder:
    """A hook for all events."""
    return Recorder()


async def until(condition: Any) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.01)


async def test_events_of_a_producer_and_a_consumer(pulsar: ScriptedPulsar, hook: Recorder) -> None:
    """Each event of a client of Pulsar, with values of the annotated types."""
    hooks: list[object] = [hook]
    async with PulsarClient(pulsar.url, hooks=hooks) as client:
        async with client.producer("orders") as producer, client.subscribe("orders", "s") as consumer:
            await producer.send(b"one")
            (connection,) = pulsar.connections
            (number,) = connection.consumers
            connection.push_entry(number, b"a", b"b", entry_id=3)
            for _ in range(2):
                consumer.ack(await consumer.receive())
            await consumer.flush()
            connection.cut()
            await until(lambda: len(hook.named("on_attached")) == 4)
    assert hook.wrong == []
    assert hook.named("on_open") == [[client], [producer], [consumer]]
    assert hook.named("on_connect") == [[-1, HOST, 6650, "pulsar"]] * 2
    lost, closed = hook.named("on_disconnect")
    assert lost[:-1] == closed[:-1] == [-1, HOST, 6650, "pulsar"]
    assert isinstance(lost[-1], ConnectionLost)
    requests = Counter(api for _, api, _, _ in hook.named("on_request"))
    assert requests == {
        "PARTITIONED_METADATA": 2,
        "LOOKUP": 4,
        "PRODUCER": 2,
        "SUBSCRIBE": 2,
        "ACK": 1,
        "CLOSE_PRODUCER": 1,
        "CLOSE_CONSUMER": 1,
    }
    assert Counter(api for _, api, _, _ in hook.named("on_response")) == requests
    assert all(size > 8 and version == 21 for _, _, version, size in hook.named("on_request"))
    assert hook.named("on_receive") == [["s", TOPIC, -1, 2, hook.named("on_receive")[0][-1]]]
    assert hook.named("on_ack") == [["s", TOPIC, -1, 1, None]]
    assert Counter(role for role, *_ in hook.named("on_attached")) == {"producer": 2, "consumer": 2}
    assert [role for role, *_ in hook.named("on_detached")] == ["producer", "consumer"]
    of_kafka = {
        "on_metadata", "on_throttle", "on_fetch", "on_join", "on_session_start", "on_session_end", "on_handler_start",
        "on_handler_end", "on_process_start", "on_process_end", "on_heartbeat", "on_commit", "on_member_stalled",
        "on_stalled", "on_resumed", "on_chunks_dropped",
    }  # fmt: skip
    of_others = {"on_delivery_start", "on_delivery_end", "on_transaction_start", "on_transaction_end"}
    assert hook.seen == EVENTS - of_kafka - of_others


async def test_a_batch_is_reported_with_its_sizes_and_attempts(
    pulsar: ScriptedPulsar, hook: Recorder
) -> None:
    pulsar.script[c.CommandSend] = in_turn(no_answer, late(0.5))
    config = PulsarProducerConfig(batching_max_delay=1.0)
    async with (
        PulsarClient(pulsar.url, hooks=[hook]) as client,
        client.producer("orders", config) as producer,
    ):
        for value in (b"a" * 100, b"b" * 100):
            await producer.enqueue(value)
        await asyncio.sleep(2.0)
        pulsar.connections[0].cut()
        await producer.flush()
    (batch,) = (batch for (batch,) in hook.named("on_batch_done"))
    assert isinstance(batch, BatchResult)
    assert (batch.topic, batch.partition, batch.records, batch.base_offset, batch.error) == (
        TOPIC,
        -1,
        2,
        -1,
        None,
    )
    assert (batch.size, batch.attempts) == (232, 2)
    assert 200 < batch.wire_size < 300
    assert batch.latency > 2.5
    assert hook.named("on_produce") == [[TOPIC, -1, 2, None]]
    assert hook.named("on_delivered") == [[TOPIC, -1, -1, 2]]


async def test_batches_that_fail_have_their_error(pulsar: ScriptedPulsar, hook: Recorder) -> None:
    """Those that were written, and the open batch, which was not."""
    pulsar.script[c.CommandSend] = no_answer
    config = PulsarProducerConfig(send_timeout=5, batching_max_delay=60)
    async with (
        PulsarClient(pulsar.url, hooks=[hook]) as client,
        client.producer("orders", config) as producer,
    ):
        with pytest.raises(RequestTimedOut):
            await producer.send(b"a")
        future = producer.send_nowait(b"b")
        await producer.aclose(drain=False)
        assert future.exception() is not None
    first, second = (batch for (batch,) in hook.named("on_batch_done"))
    assert isinstance(first.error, RequestTimedOut)
    assert (first.records, first.attempts, round(first.latency)) == (1, 1, 5)
    assert (second.records, second.attempts, second.wire_size, second.error) == (1, 0, 0, future.exception())
    assert hook.named("on_delivered") == []
    assert len(hook.named("on_produce")) == 2


async def test_a_message_is_reported_in_pairs(pulsar: ScriptedPulsar, hook: Recorder) -> None:
    pulsar.script[c.CommandSend] = in_turn(late(0.1), refuse(22))
    async with PulsarProducer(pulsar.url, "orders", hooks=[hook]) as producer:
        stored = await producer.send(b"a", key="k", properties={"n": "1"})
        with pytest.raises(PulsarServerError) as refused:
            await producer.send(b"b")
        with pytest.raises(ValueError, match="value"):
            await producer.send("no bytes")  # type: ignore[arg-type]
    starts = [record for (record,) in hook.named("on_send_start")]
    ends = hook.named("on_send_end")
    assert starts == [
        PulsarProducerRecord(TOPIC, b"a", "k", {"n": "1"}),
        PulsarProducerRecord(TOPIC, b"b"),
    ]
    assert [record is started for (record, _, _), started in zip(ends, starts, strict=True)] == [True, True]
    assert ends[0][1:] == [stored, None]
    assert isinstance(stored, MessageId)
    assert ends[1][1] is None
    assert str(ends[1][2]) == str(refused.value)


async def test_without_hooks_nothing_is_prepared(pulsar: ScriptedPulsar) -> None:
    """A frame costs a comparison: there is no object to be called."""
    async with PulsarClient(pulsar.url) as client:
        async with client.producer("orders") as producer, client.subscribe("orders", "s") as consumer:
            (part,) = producer._producers
            assert part.queue._reports is None
            assert not part._reports_starts
            assert producer._sends.hooks is None
            (one,) = consumer.partitions
            assert one._on_received is None
            assert one._parts.acks._on_answer is None
            (connection,) = client._inner.pool.connections
            assert connection.reports is None


async def test_a_request_that_is_refused_was_answered_and_one_without_answer_was_not(
    pulsar: ScriptedPulsar, hook: Recorder
) -> None:
    pulsar.script[c.CommandSubscribe] = in_turn(refuse(6), late(2.0), no_answer, late(1.0))
    async with PulsarClient(pulsar.url, hooks=[hook]) as client, client.subscribe("orders", "s"):
        pulsar.unload("orders")
        await until(lambda: len(hook.named("on_attached")) == 2)
    sent = [api for _, api, _, _ in hook.named("on_request")].count("SUBSCRIBE")
    answers = [seconds for _, api, seconds, _ in hook.named("on_response") if api == "SUBSCRIBE"]
    assert sent == 4
    assert [round(seconds) for seconds in answers] == [0, 2, 1]
    errors = [error for _, _, _, error in hook.named("on_detached")]
    assert [type(error) for error in errors] == [PulsarServerError, ConnectionLost, RequestTimedOut]
    assert {tuple(others) for *others, _ in hook.named("on_attached")} == {("consumer", TOPIC, -1)}
    assert [round(seconds) for *_, seconds in hook.named("on_attached")] == [2, 31]


async def test_a_producer_that_waits_for_its_turn_is_answered_once(
    pulsar: ScriptedPulsar, hook: Recorder
) -> None:
    def wait(call: Any) -> None:
        waiting = c.CommandProducerSuccess(
            request_id=call.request_id, producer_name="p", last_sequence_id=-1, producer_ready=False
        )
        call.answer(waiting)
        late(50.0)(call)

    pulsar.script[c.CommandProducer] = wait
    async with PulsarClient(pulsar.url, hooks=[hook]) as client:
        config = PulsarProducerConfig(access_mode="wait_for_exclusive")
        async with client.producer("orders", config):
            pass
    (seconds,) = (seconds for _, api, seconds, _ in hook.named("on_response") if api == "PRODUCER")
    assert seconds == pytest.approx(50.0, abs=0.1)


async def test_an_end_that_no_attempt_follows_is_reported_once(
    pulsar: ScriptedPulsar, hook: Recorder
) -> None:
    pulsar.script[c.CommandSubscribe] = refuse(11)
    async with PulsarClient(pulsar.url, hooks=[hook]) as client:
        with pytest.raises(PulsarServerError):
            await client.subscribe("orders", "s").__aenter__()
    assert [error.code for _, _, _, error in hook.named("on_detached")] == [11]
    assert hook.named("on_attached") == []


async def test_acknowledgements_that_are_refused(pulsar: ScriptedPulsar, hook: Recorder) -> None:
    pulsar.script[c.CommandAck] = in_turn(refuse(1), late(0.0))
    config = PulsarConsumerConfig(ack_group_time=0.1)
    async with (
        PulsarClient(pulsar.url, hooks=[hook]) as client,
        client.subscribe("orders", "s", type="shared", config=config) as consumer,
    ):
        (connection,) = pulsar.connections
        (number,) = connection.consumers
        for entry in range(3):
            connection.push_entry(number, b"a", entry_id=entry)
        for _ in range(3):
            consumer.ack(await consumer.receive())
        await until(lambda: len(hook.named("on_ack")) == 2)
    (*first, error), second = hook.named("on_ack")
    assert first == ["s", TOPIC, -1, 3]
    assert isinstance(error, PulsarServerError)
    assert second == ["s", TOPIC, -1, 3, None]


@pytest.mark.parametrize(
    ("chunks", "size", "kind"),
    [
        ([0], 4, "expired"),
        ([1], 4, "no first chunk"),
        ([0, 2], 4, "gap"),
        ([0], (1 << 31) - 1, "too large"),
        ([0, 1, 2], 4, "mismatch"),
    ],
)
async def test_a_value_in_chunks_that_is_given_up(
    pulsar: ScriptedPulsar, hook: Recorder, chunks: list[int], size: int, kind: str
) -> None:
    async with PulsarClient(pulsar.url, hooks=[hook]) as client:
        config = PulsarConsumerConfig(chunk_expiry=10)
        async with client.subscribe("orders", "s", config=config):
            (connection,) = pulsar.connections
            (number,) = connection.consumers
            for chunk in chunks:
                fields = {"uuid": "u", "chunk_id": chunk, "num_chunks_from_msg": 3}
                sizes = {"total_chunk_msg_size": size, "uncompressed_size": size}
                connection.push_entry(number, b"..", entry_id=chunk, **fields, **sizes)
            await asyncio.sleep(20.0)
    assert hook.named("on_chunks_dropped") == [[TOPIC, -1, -1, kind]]
    assert hook.wrong == []


async def test_each_command_of_a_flush_that_is_refused_is_sent_again(pulsar: ScriptedPulsar) -> None:
    """Found by reading: the second refusal of one time was taken for the end of the connection."""
    pulsar.script[c.CommandAck] = in_turn(refuse(1), refuse(1), late(0.0))
    config = PulsarConsumerConfig(ack_group_time=100.0)
    async with (
        PulsarClient(pulsar.url) as client,
        client.subscribe("orders", "s", type="failover", config=config) as consumer,
    ):
        (connection,) = pulsar.connections
        (number,) = connection.consumers
        connection.push(c.CommandActiveConsumerChange(consumer_id=number, is_active=True))
        for entry in range(3):
            connection.push_entry(number, b"a", entry_id=entry)
        taken = [await consumer.receive() for _ in range(3)]
        consumer.ack_cumulative(taken[0])
        consumer.ack(taken[2])
        with pytest.raises(PulsarServerError):
            await consumer.flush()
        await asyncio.sleep(5.0)
        assert len(pulsar.commands(c.CommandAck)) == 4
        (one,) = consumer.partitions
        assert repr(one._parts.acks._pending) == "<PendingAcks 0 pending, 0 commands in flight>"


async def test_transactions_are_reported_with_their_outcome(pulsar: ScriptedPulsar, hook: Recorder) -> None:
    failure = LookupError("found nothing")
    async with PulsarClient(pulsar.url, hooks=[hook]) as client:
        async with client.transaction() as committed:
            await asyncio.sleep(3.0)
        async with client.transaction() as aborted:
            await aborted.abort()
        with pytest.raises(LookupError):
            async with client.transaction() as failed:
                raise failure
        with pytest.raises(PulsarTransactionTimedOut):
            async with client.transaction(timeout=2.0) as late_one:
                await asyncio.sleep(5.0)
        pulsar.script[c.CommandEndTxn] = refuse(ServerError.TRANSACTION_NOT_FOUND)
        with pytest.raises(PulsarTransactionAborted):
            async with client.transaction() as refused:
                pass
        pulsar.script[c.CommandEndTxn] = no_answer
        with pytest.raises(PulsarTransactionOutcomeUnknown):
            async with client.transaction() as unknown:
                pass
        pulsar.script.clear()
        await client.transaction().__aenter__()
    assert hook.wrong == []
    begun = [transaction for (transaction,) in hook.named("on_transaction_start")]
    assert begun[:-1] == [committed, aborted, failed, late_one, refused, unknown]
    ends = hook.named("on_transaction_end")
    assert [transaction for transaction, *_ in ends] == begun
    assert [outcome for _, outcome, *_ in ends] == [
        "committed", "aborted", "aborted", "timed out", "aborted", "unknown", "aborted",
    ]  # fmt: skip
    errors = [error for *_, error in ends]
    assert errors[:3] == [None, None, failure]
    assert [type(error) for error in errors[3:]] == [
        PulsarTransactionTimedOut,
        PulsarTransactionAborted,
        PulsarTransactionOutcomeUnknown,
        ClosedError,
    ]
    assert [round(seconds) for _, _, seconds, _ in ends] == [3, 0, 0, 2, 0, 30, 0]


async def test_hooks_of_a_client_get_the_events_of_its_queues_as_well(
    pulsar: ScriptedPulsar, hook: Recorder
) -> None:
    of_queue = Recorder()
    async with PulsarClient(pulsar.url, hooks=[hook]) as client:
        source = PulsarSource(client, "billing", "orders", hooks=[of_queue, hook])
        async with WorkQueue(source) as queue:
            connection = next(each for each in pulsar.connections if each.consumers)
            connection.push_entry(next(iter(connection.consumers)), b"a", entry_id=1)
            await (await queue.receive()).ack()
    assert [delivery for delivery, *_ in hook.named("on_delivery_end")] == [
        delivery for delivery, *_ in of_queue.named("on_delivery_end")
    ]
    assert hook.named("on_open") == [[client], [queue]]
    assert of_queue.named("on_open") == [[queue]]
    assert of_queue.named("on_receive", "on_connect") == [], "those of the client"


async def test_hooks_of_a_queue_get_the_events_of_its_own_client(
    pulsar: ScriptedPulsar, hook: Recorder
) -> None:
    source = PulsarSource(pulsar.url, "billing", "orders", hooks=[hook])
    async with WorkQueue(source) as queue:
        connection = next(each for each in pulsar.connections if each.consumers)
        connection.push_entry(next(iter(connection.consumers)), b"a", entry_id=1)
        await (await queue.receive()).ack()
    assert hook.wrong == []
    assert hook.seen >= {"on_connect", "on_receive", "on_ack", "on_attached", "on_delivery_start"}
    assert [outcome for _, outcome, _ in hook.named("on_delivery_end")] == ["acknowledged"]


async def test_hooks_of_a_producer_beside_a_client_are_refused(pulsar: ScriptedPulsar) -> None:
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(ConfigError, match="no hooks with a PulsarClient: pass them to the client"):
            PulsarProducer(client, "orders", hooks=[Recorder()])
    with pytest.raises(ConfigError, match="objects, not their classes"):
        PulsarClient(pulsar.url, hooks=[Recorder])


def test_every_request_has_its_name() -> None:
    assert set(REQUEST_NAMES) == set(ANSWERS)
    assert len(set(REQUEST_NAMES.values())) == len(REQUEST_NAMES)


def test_hooks_that_are_joined_are_called_once() -> None:
    first, second = Recorder(), Recorder()
    Hooks([first]).joined([second, first]).emit("on_ack", "s", TOPIC, 0, 1, None)
    assert len(first.events) == len(second.events) == 1
