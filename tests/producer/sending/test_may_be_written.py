"""Whether a record that failed may be in the log: `may_be_written` of its error; and single bad records of a batch (KIP-467)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import Interceptor
from asyncgroup.errors import (
    AsyncGroupError,
    BatchRejectedError,
    BrokerError,
    ClosedError,
    DeliveryFailedError,
    ErrorCode,
    RecordRejectedError,
    RequestTimedOut,
    TransactionAbortedError,
)
from asyncgroup.model import RecordMetadata
from asyncgroup.producer import Producer
from asyncgroup.wire import messages as m
from tests.producer.support import QUICK, TOPIC, stored, writing

SHORT: dict[str, Any] = {"delivery_timeout": 20.0, "request_timeout": 5.0}
COMPACTED = "compacted"


async def error_of(future: asyncio.Future[RecordMetadata]) -> AsyncGroupError:
    with pytest.raises(AsyncGroupError) as raised:
        await future
    return raised.value


# --- whether it may be in the log -----------------------------------------------------------------------------------


def leaderless(response: Any) -> Any:
    for topic in response.topics:
        for part in topic.partitions:
            part.leader_id = -1
    return response


@pytest.mark.parametrize("obstacle", ["leaderless", "refuses", "silent"])
async def test_a_record_that_was_never_sent_is_not_in_the_log(obstacle: str) -> None:
    """Its leader is unknown, or refuses connections, or accepts them and is silent: it expires while one is opened."""
    async with writing(nodes=1, connect_timeout=12.0, **SHORT) as (cluster, producer):
        if obstacle == "refuses":
            await producer.send(TOPIC, b"warm up", partition=0)
            await cluster.stop_node(1)
            await asyncio.sleep(1.0)  # until the client knows that its connection has ended
        elif obstacle == "silent":
            cluster.faults.on("ApiVersions", times=None).drop()
        else:
            cluster.faults.on("Metadata", times=None).mutate(leaderless)
        errors = [await error_of(each) for each in [producer.send_nowait(TOPIC, b"x", partition=0)] * 2]
        assert all(isinstance(error, RequestTimedOut) for error in errors)
        assert not any(error.may_be_written for error in errors)


@pytest.mark.parametrize("code", ["NOT_ENOUGH_REPLICAS", "UNKNOWN_TOPIC_ID"])
@pytest.mark.full
async def test_attempts_that_the_broker_refused_before_it_wrote_leave_nothing(code: str) -> None:
    async with writing(nodes=1, **QUICK, **SHORT) as (cluster, producer):
        cluster.faults.on("Produce", times=None).error(code)
        error = await error_of(producer.send_nowait(TOPIC, b"x", partition=0))
        assert isinstance(error, RequestTimedOut)
        assert not error.may_be_written


async def test_a_record_that_expires_while_its_request_is_held_back_is_never_sent() -> None:
    """The broker throttles the client (KIP-219) for longer than the record may wait; its caller may send it again."""
    async with writing(nodes=1, **QUICK, **SHORT) as (cluster, producer):
        cluster.faults.on("Produce", nth=2).throttle(21_000)
        for value in (b"a", b"b"):
            await producer.send(TOPIC, value, partition=0)
        expired = producer.send_nowait(TOPIC, b"x", partition=0)
        await asyncio.sleep(3.0)
        later = producer.send_nowait(TOPIC, b"y", partition=0)  # in a request that waits for the other one
        assert not (await error_of(expired)).may_be_written
        await later
        assert stored(cluster, 0) == [b"a", b"b", b"y"]


@pytest.mark.parametrize("code", ["NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_LEADER_OR_FOLLOWER"])
async def test_attempts_that_the_broker_may_have_written(code: str) -> None:
    """A leader that loses its leadership while it waits for the followers answers NOT_LEADER_OR_FOLLOWER as well."""
    async with writing(nodes=1, **QUICK, **SHORT) as (cluster, producer):
        cluster.faults.on("Produce", times=None).error(code)
        assert (await error_of(producer.send_nowait(TOPIC, b"x", partition=0))).may_be_written


async def test_an_unexpected_error_of_the_broker_does_not_say_whether_it_has_written() -> None:
    """UNKNOWN_SERVER_ERROR is any exception during the append, also after the log was written."""
    async with writing(nodes=1, **QUICK, **SHORT) as (cluster, producer):
        cluster.faults.on("Produce").mutate(after_the_append)
        error = await error_of(producer.send_nowait(TOPIC, b"x", partition=0))
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert stored(cluster, 0) == [b"x"]
        assert error.may_be_written
        assert "may be in the log" in error.__notes__[0]


def after_the_append(response: Any) -> Any:
    for topic in response.responses:
        for part in topic.partition_responses:
            part.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
    return response


async def test_a_record_whose_response_is_missing_may_be_in_the_log() -> None:
    """This holds for all records of its batch, also if it expires in flight, and if a later attempt is refused."""
    async with writing(nodes=1, **QUICK, **SHORT) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce", times=None).drop()
        futures = [producer.send_nowait(TOPIC, b"x", partition=0) for _ in range(2)]
        assert [(await error_of(future)).may_be_written for future in futures] == [True, True]
        cluster.faults.clear()
        cluster.faults.on("Produce").disconnect("after")
        cluster.faults.on("Produce", nth=2).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        error = await error_of(producer.send_nowait(TOPIC, b"y", partition=0))
        assert isinstance(error, BrokerError)
        assert error.may_be_written
        assert b"y" in stored(cluster, 0)
        cluster.faults.on("Produce").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        assert not (await error_of(producer.send_nowait(TOPIC, b"z", partition=0))).may_be_written


async def test_closing_says_which_records_may_be_in_the_log() -> None:
    async with writing(nodes=1, linger=50.0) as (cluster, producer):
        producer.send_nowait(TOPIC, b"warm up", partition=0)
        await producer.flush()
        cluster.faults.on("Produce").drop()
        in_flight = producer.send_nowait(TOPIC, b"x", partition=0)
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(1.0)
        lingering = producer.send_nowait(TOPIC, b"x", partition=0)
        unknown = producer.send_nowait("unknown", b"x")
        missing = producer.send_nowait(TOPIC, b"x", partition=99)
        await producer.aclose(drain=False)
        await flushing
        errors = [await error_of(future) for future in (in_flight, lingering, unknown, missing)]
        assert {type(error) for error in errors} == {ClosedError}
        assert [error.may_be_written for error in errors] == [True, False, False, False]


@pytest.mark.full
async def test_a_topic_that_cannot_be_looked_up_has_no_records() -> None:
    async with writing(nodes=1, **QUICK, **SHORT) as (cluster, producer):
        assert not (await error_of(producer.send_nowait("missing", b"x"))).may_be_written
        await cluster.stop_node(1)
        error = await error_of(producer.send_nowait(TOPIC, b"x"))
        assert isinstance(error, RequestTimedOut)
        assert not error.may_be_written


async def test_flush_says_whether_a_lost_record_may_be_in_the_log() -> None:
    """One such record suffices, also if it is not the first of its partition."""
    async with writing(nodes=1, **QUICK, **SHORT) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await producer.enqueue(TOPIC, b"x", partition=0)
        with pytest.raises(DeliveryFailedError) as raised:
            await producer.flush()
        assert not raised.value.may_be_written
        cluster.faults.on("Produce").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await producer.enqueue(TOPIC, b"x", partition=0)
        await asyncio.sleep(1.0)
        cluster.faults.on("Produce", times=None).drop()
        await producer.enqueue(TOPIC, b"x", partition=0)
        with pytest.raises(DeliveryFailedError, match=r"2 records not delivered.*TOPIC_AUTH") as raised:
            await producer.flush()
        assert raised.value.may_be_written


# --- one bad record of a batch --------------------------------------------------------------------------------------


async def compacted(cluster: Any) -> str:
    cluster.create_topic(COMPACTED, 1, configs={"cleanup.policy": "compact"})
    return COMPACTED


def batch_of(
    producer: Producer, topic: str, keys: list[bytes | None]
) -> list[asyncio.Future[RecordMetadata]]:
    return [producer.send_nowait(topic, b"%d" % n, key=key, partition=0) for n, key in enumerate(keys)]


async def test_a_bad_record_gets_its_reason_and_the_others_may_be_sent_again() -> None:
    async with writing(nodes=1, linger=0.01) as (cluster, producer):
        topic = await compacted(cluster)
        bad = batch_of(producer, topic, [b"a", None, b"b"])
        first, own, last = [await error_of(future) for future in bad]
        assert type(own) is RecordRejectedError
        assert (own.code, own.retriable, own.may_be_written) == (ErrorCode.INVALID_RECORD, False, False)
        assert "record for compacted-0" in str(own)
        assert "key" in str(own)
        for innocent in (first, last):
            assert isinstance(innocent, BatchRejectedError)
            assert (innocent.code, innocent.retriable, innocent.may_be_written) == (87, True, False)
            assert "not written, because record 1 of its batch was rejected; send it again" in str(innocent)
        assert first is not last
        assert stored(cluster, topic=topic) == []
        await asyncio.gather(*batch_of(producer, topic, [b"a", b"b"]))
        assert len(stored(cluster, topic=topic)) == 2


async def test_several_bad_records_have_a_reason_each() -> None:
    """As in Java, each has the code INVALID_RECORD: the code of the response belongs to only one record."""

    def change(response: Any) -> Any:
        part = response.responses[0].partition_responses[0]
        part.error_code, part.base_offset = ErrorCode.INVALID_TIMESTAMP, -1
        part.error_message = "One or more records have been rejected"
        part.record_errors = [
            m.ProduceResponse.BatchIndexAndErrorMessage(0, "its timestamp is in the future"),
            m.ProduceResponse.BatchIndexAndErrorMessage(2, None),
            m.ProduceResponse.BatchIndexAndErrorMessage(99, "there is no such record"),
        ]
        return response

    async with writing(nodes=1, linger=0.01) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").mutate(change)
        errors = [await error_of(future) for future in batch_of(producer, TOPIC, [b"k"] * 3)]
        assert [type(error) for error in errors] == [
            RecordRejectedError,
            BatchRejectedError,
            RecordRejectedError,
        ]
        assert "INVALID_RECORD (87): its timestamp is in the future" in str(errors[0])
        assert "INVALID_TIMESTAMP (32): not written, because records 0, 2 of" in str(errors[1])
        assert "INVALID_RECORD (87): One or more records have been rejected" in str(errors[2])


@pytest.mark.full
async def test_after_a_lost_response_the_others_are_not_asked_to_send_again() -> None:
    async with writing(nodes=1, **QUICK | {"linger": 0.01}) as (cluster, producer):
        topic = await compacted(cluster)
        await producer.send(topic, b"warm up", key=b"k")
        cluster.faults.on("Produce").disconnect("before")
        innocent, own = [await error_of(each) for each in batch_of(producer, topic, [b"a", None])]
        for error in (innocent, own):
            assert error.may_be_written
            assert "may be in the log" in error.__notes__[0]
        assert not innocent.retriable
        assert "again" not in str(innocent)


async def test_interceptors_and_flush_hear_of_the_bad_record() -> None:
    ended: dict[bytes, Exception | None] = {}

    class Ends(Interceptor):
        def on_acknowledgement(self, record: Any, metadata: Any, error: Exception | None) -> None:
            ended[record.value] = error

    async with writing(nodes=1) as (cluster, known):
        topic = await compacted(cluster)
        async with Producer(known.cluster, interceptors=[Ends()]) as producer:
            await producer.enqueue(topic, b"good", key=b"k")
            await producer.enqueue(topic, b"bad")
            with pytest.raises(DeliveryFailedError, match=r"2 records not delivered: .*record 1: .*key"):
                await producer.flush()
        assert {value: type(error) for value, error in ended.items()} == {
            b"good": BatchRejectedError,
            b"bad": RecordRejectedError,
        }


async def test_a_bad_record_of_a_transaction() -> None:
    async with writing(nodes=1, linger=0.01, transactional_id="tx") as (cluster, producer):
        topic = await compacted(cluster)
        with pytest.raises(TransactionAbortedError, match="INVALID_RECORD"):
            async with producer.transaction():
                innocent, own = batch_of(producer, topic, [b"a", None])
                assert type(await error_of(own)) is RecordRejectedError
                assert isinstance(await error_of(innocent), BatchRejectedError)
