"""The transaction coordinators: which one is asked, and what follows when it moves, fails, or is not there."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import ClosedError, RequestTimedOut
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.transactions.coordinators import ASSIGNMENT_TOPIC
from asyncgroup.pulsar.transactions.errors import TransactionsNotEnabled
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.server_errors import ServerError
from tests.pulsar.scripted import Call, ScriptedPulsar, in_turn, no_answer, refuse
from tests.pulsar.support import now


async def run(client: PulsarClient, count: int = 1) -> None:
    for _ in range(count):
        async with client.transaction():
            pass


async def test_transactions_go_to_the_coordinators_in_turn(pulsar: ScriptedPulsar) -> None:
    pulsar.set_partitions(str(ASSIGNMENT_TOPIC), 3)
    async with PulsarClient(pulsar.url) as client:
        await run(client, 6)
    asked = [one.tc_id for one in pulsar.commands(c.CommandNewTxn)]
    assert sorted(asked[:3]) == [0, 1, 2]
    assert asked[3:] == asked[:3]
    assert [one.txnid_most_bits for one in pulsar.commands(c.CommandEndTxn)] == asked
    assert sorted(one.tc_id for one in pulsar.commands(c.CommandTcClientConnectRequest)) == [0, 1, 2]
    looked_up = {one.topic for one in pulsar.commands(c.CommandLookupTopic)}
    assert looked_up == {f"{ASSIGNMENT_TOPIC}-partition-{n}" for n in range(3)}


async def test_they_are_looked_up_with_the_first_transaction_and_once(pulsar: ScriptedPulsar) -> None:
    async with PulsarClient(pulsar.url) as client:
        await client.partitions("orders")
        assert not pulsar.commands(c.CommandTcClientConnectRequest)
        await asyncio.gather(*(run(client) for _ in range(5)))
    topics = [one.topic for one in pulsar.commands(c.CommandPartitionedTopicMetadata)]
    assert topics.count(str(ASSIGNMENT_TOPIC)) == 1
    assert len(pulsar.commands(c.CommandTcClientConnectRequest)) == 1


async def test_a_coordinator_that_has_moved_is_looked_up_again(two_brokers: ScriptedPulsar) -> None:
    pulsar = two_brokers
    pulsar.own(str(ASSIGNMENT_TOPIC), "10.0.0.1")
    async with PulsarClient(pulsar.url) as client:
        await run(client)
        pulsar.own(str(ASSIGNMENT_TOPIC), "10.0.0.2")
        for kind in (c.CommandNewTxn, c.CommandEndTxn):
            pulsar["10.0.0.1"].script[kind] = refuse(ServerError.TRANSACTION_COORDINATOR_NOT_FOUND)
        await run(client, 2)
    assert len(pulsar.commands(c.CommandTcClientConnectRequest, "10.0.0.2")) == 1
    assert len(pulsar.commands(c.CommandEndTxn, "10.0.0.2")) == 2
    assert len(pulsar.commands(c.CommandNewTxn, "10.0.0.1")) == 2, "one of them refused"


@pytest.mark.parametrize("kind", [c.CommandNewTxn, c.CommandEndTxn, c.CommandTcClientConnectRequest])
async def test_a_connection_that_is_cut(pulsar: ScriptedPulsar, kind: type[c.Command]) -> None:
    pulsar.script[kind] = in_turn(Call.cut, Call.default)
    async with PulsarClient(pulsar.url) as client:
        await run(client)
    assert len(pulsar.commands(kind)) == 2


@pytest.mark.parametrize(
    "code", [ServerError.SERVICE_NOT_READY, ServerError.TRANSACTION_COORDINATOR_NOT_FOUND, ServerError.UNKNOWN_ERROR]
)  # fmt: skip
async def test_errors_that_pass(pulsar: ScriptedPulsar, code: ServerError) -> None:
    kinds = (c.CommandTcClientConnectRequest, c.CommandNewTxn, c.CommandEndTxn)
    pulsar.script |= {kind: in_turn(refuse(code), Call.default) for kind in kinds}
    async with PulsarClient(pulsar.url) as client:
        await run(client)
    connects, begins, ends = (len(pulsar.commands(kind)) for kind in kinds)
    assert (begins, ends) == (2, 2)
    assert connects == (2 if code is ServerError.UNKNOWN_ERROR else 4), (
        "again after its own error and after the others"
    )


async def test_one_that_is_not_found_gets_no_new_transactions(pulsar: ScriptedPulsar) -> None:
    pulsar.set_partitions(str(ASSIGNMENT_TOPIC), 2)
    async with PulsarClient(pulsar.url) as client:
        await run(client, 2)
        answer = pulsar.first.answer

        def first_only(call: Call) -> None:
            if call.command.tc_id == 0:
                answer(call)

        pulsar.script[c.CommandTcClientConnectRequest] = first_only
        pulsar.first.cut()
        await asyncio.sleep(1)
        started = now()
        await run(client, 4)
        assert now() - started < 1.0


async def test_a_broker_without_transactions(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandTcClientConnectRequest] = refuse(
        ServerError.NOT_ALLOWED_ERROR, "Transactions are not enabled."
    )
    async with PulsarClient(pulsar.url) as client:
        for _ in range(2):
            with pytest.raises(TransactionsNotEnabled, match="transactionCoordinatorEnabled=true"):
                await run(client)
        pulsar.script.clear()
        await run(client)


async def test_a_broker_without_the_topic_of_coordinators(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandPartitionedTopicMetadata] = refuse(ServerError.TOPIC_NOT_FOUND)
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(TransactionsNotEnabled, match="transactionCoordinatorEnabled=true"):
            await run(client)


async def test_a_coordinator_that_does_not_answer(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandNewTxn] = no_answer
    async with PulsarClient(pulsar.url, PulsarConfig(operation_timeout=3)) as client:
        started = now()
        with pytest.raises(RequestTimedOut, match="NEW_TXN"):
            await run(client)
        assert 2.5 < now() - started < 3.5


async def test_a_closed_client(pulsar: ScriptedPulsar) -> None:
    client = PulsarClient(pulsar.url)
    with pytest.raises(ClosedError, match="enter the client first"):
        await run(client)
    async with client:
        await run(client)
    with pytest.raises(ClosedError, match="closed"):
        await run(client)
