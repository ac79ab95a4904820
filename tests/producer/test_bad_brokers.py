"""Misbehaving brokers and bugs in the producer: no caller hangs."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    ErrorCode,
    UnsupportedVersionError,
)
from asyncgroup.producer import Producer
from asyncgroup.wire import messages as m
from tests.cluster.scripted import Call, ScriptedCluster
from tests.producer.support import TOPIC, now, stored, writing


def produce_response(call: Call, offset: int, leave_out: bool = False) -> m.ProduceResponse:
    topics = []
    for topic in call.request.topic_data:
        parts = [
            m.ProduceResponse.PartitionProduceResponse(part.index, base_offset=offset)
            for part in topic.partition_data
            if not leave_out
        ]
        topics.append(m.ProduceResponse.TopicProduceResponse(topic.name, topic.topic_id, parts))
    return m.ProduceResponse(topics)


async def test_a_broker_without_a_supported_produce_version() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted.topics = {TOPIC: {0: (1, 0)}}
        scripted[1].versions["Produce"] = (0, 2)
        async with Producer(scripted.servers) as producer:
            with pytest.raises(
                UnsupportedVersionError, match=r"Produce: node 1 .* offers 0-2, this client supports 3-12"
            ):
                await producer.send(TOPIC, b"x")


@pytest.mark.parametrize("version", [3, 5, 8, 9, 12, 13])
async def test_every_version_of_produce(version: int) -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted.topics = {TOPIC: {0: (1, 0)}}
        scripted[1].versions["Produce"] = (0, version)
        scripted[1].script["Produce"] = lambda call: call.answer(produce_response(call, 42))
        async with Producer(scripted.servers) as producer:
            assert (await producer.send(TOPIC, b"x")).offset == 42
            # the scripted brokers have no topic ids, so names must be used: versions up to 12
            assert scripted.requests_of("Produce")[0].version == min(version, 12)


async def test_a_response_without_the_partition_is_retried() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted.topics = {TOPIC: {0: (1, 0)}}
        answers = [True, False]
        scripted[1].script["Produce"] = lambda call: call.answer(produce_response(call, 7, answers.pop(0)))
        async with Producer(scripted.servers) as producer:
            assert (await producer.send(TOPIC, b"x")).offset == 7
            assert len(scripted.requests_of("Produce")) == 2


@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "disconnects"])
async def test_a_leader_named_with_a_false_epoch_is_given_up_when_it_fails(refuses: bool) -> None:
    """By KIP-951 the response names a leader and its epoch; the metadata has an older epoch, and is right."""
    async with ScriptedCluster("10.0.0.1", "10.0.0.2") as scripted:
        scripted.topics = {TOPIC: {0: (1, 5)}}
        lies = [2]

        def leader(call: Call) -> None:
            response = produce_response(call, 7)
            if lies:
                part = response.responses[0].partition_responses[0]
                part.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                part.current_leader = m.ProduceResponse.LeaderIdAndEpoch(lies.pop(), 1_000_000)
            call.answer(response)

        def no_leader(call: Call) -> None:
            response = produce_response(call, -1)
            response.responses[0].partition_responses[0].error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            call.answer(response) if refuses else call.cut()

        scripted[1].script["Produce"] = leader
        scripted[2].script["Produce"] = no_leader
        async with Producer(scripted.servers) as producer:
            assert (await producer.send(TOPIC, b"x")).offset == 7
            assert now() < 5
            assert len(scripted.requests_of("Produce")) <= 5


async def test_a_malformed_response_is_retried() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted.topics = {TOPIC: {0: (1, 0)}}

        def answer(call: Call) -> None:
            if len(scripted.requests_of("Produce")) == 1:
                call.write(
                    b"\x00\x00\x00\x07" + call.header.correlation_id.to_bytes(4, "big") + b"\x00\xff\xff"
                )
            else:
                call.answer(produce_response(call, 3))

        scripted[1].script["Produce"] = answer
        async with Producer(scripted.servers) as producer:
            assert (await producer.send(TOPIC, b"x")).offset == 3


async def test_rejected_records_are_named() -> None:
    """Record errors of KIP-467."""
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted.topics = {TOPIC: {0: (1, 0)}}

        def answer(call: Call) -> None:
            response = produce_response(call, -1)
            part = response.responses[0].partition_responses[0]
            part.error_code, part.error_message = ErrorCode.INVALID_RECORD, "no"
            part.record_errors = [m.ProduceResponse.BatchIndexAndErrorMessage(2, "has no key")]
            call.answer(response)

        scripted[1].script["Produce"] = answer
        async with Producer(scripted.servers) as producer:
            with pytest.raises(BrokerError, match=r"INVALID_RECORD \(87\): no; record 2: has no key"):
                await producer.send(TOPIC, b"x")


async def test_log_append_time() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted.topics = {TOPIC: {0: (1, 0)}}

        def answer(call: Call) -> None:
            response = produce_response(call, 0)
            response.responses[0].partition_responses[0].log_append_time_ms = 123
            call.answer(response)

        scripted[1].script["Produce"] = answer
        async with Producer(scripted.servers) as producer:
            assert (await producer.send(TOPIC, b"x", timestamp=5)).timestamp == 123


async def test_after_all_batches_failed_new_records_start_new_batches() -> None:
    async with writing(linger=1.0) as (_, producer):
        await producer.send(TOPIC, b"x", partition=0)
        lost = producer.send_nowait(TOPIC, b"lost", partition=0)
        producer._inner.sender.fail_all(ClosedError("given up"))
        with pytest.raises(ClosedError, match="given up"):
            await lost
        assert (await producer.send(TOPIC, b"y", partition=0)).offset == 1


async def test_a_bug_in_the_sender_fails_waiting_callers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with writing(nodes=1) as (_, producer):
        await producer.send(TOPIC, b"x")
        producer._inner.accumulator.schedule.plan = lambda *_, **__: 1 / 0  # type: ignore[assignment, method-assign]
        with pytest.raises(ZeroDivisionError):
            await producer.send(TOPIC, b"y")
        with pytest.raises(ClosedError):
            await producer.send(TOPIC, b"z")
        with pytest.raises(ZeroDivisionError):
            await producer.aclose()
        assert "Producer: sender failed" in caplog.text


async def test_random_failures_under_three_writers() -> None:
    """Leader moves, error codes, disconnects and node restarts at once, replayed from a seed."""
    rng = random.Random(11)
    async with writing(linger=0.01, retry_backoff=0.05, retry_backoff_max=0.5) as (cluster, producer):

        async def inject_failures() -> None:
            codes = [
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.REQUEST_TIMED_OUT,
                ErrorCode.NOT_ENOUGH_REPLICAS,
            ]
            for _ in range(40):
                await asyncio.sleep(0.1)
                match rng.randrange(4):
                    case 0:
                        cluster.move_leader(
                            TOPIC,
                            rng.randrange(6),
                            rng.choice([n for n in (1, 2, 3) if cluster.nodes[n].running]),
                        )
                    case 1:
                        cluster.faults.on("Produce").error(rng.choice(codes)).optional()
                    case 2:
                        cluster.faults.on("Produce").disconnect("before").optional()
                    case 3:
                        node = rng.randrange(1, 4)
                        await cluster.stop_node(node)
                        await asyncio.sleep(0.2)
                        await cluster.start_node(node)

        async def writer(partition: int) -> list[int]:
            return [
                (await producer.send(TOPIC, b"%d-%04d" % (partition, number), partition=partition)).offset
                for number in range(150)
            ]

        injecting = asyncio.create_task(inject_failures())
        offsets = await asyncio.gather(*(writer(partition) for partition in range(3)))
        await injecting
        for partition, found in enumerate(offsets):
            values = stored(cluster, partition)
            assert found == sorted(found)
            firsts = list(
                dict.fromkeys(values)
            )  # a node may have appended a batch and stopped before it answered
            assert firsts == [b"%d-%04d" % (partition, number) for number in range(150)]
            for number, offset in enumerate(found):
                assert values[offset] == b"%d-%04d" % (partition, number)


async def test_a_batch_that_cannot_be_encoded_fails_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> bytes:
        raise UnsupportedVersionError("no zstd here")

    async with writing(nodes=1) as (_, producer):
        await producer.send(TOPIC, b"x", partition=0)
        with monkeypatch.context() as patch:
            patch.setattr("asyncgroup.wire.records.BatchBuilder.build_buffer", missing)
            with pytest.raises(UnsupportedVersionError, match="zstd"):
                await producer.send(TOPIC, b"y", partition=0)
        assert (await producer.send(TOPIC, b"z", partition=0)).offset == 1


async def test_a_bug_in_one_request_fails_only_its_records(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with writing(nodes=1) as (_, producer):
        await producer.send(TOPIC, b"x", partition=0)
        with monkeypatch.context() as patch:
            patch.setattr("asyncgroup.producer.sending.sender.build_produce_request", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await producer.send(TOPIC, b"y", partition=0)
        assert "failed unexpectedly" in caplog.text
        assert (await producer.send(TOPIC, b"z", partition=0)).offset == 1
