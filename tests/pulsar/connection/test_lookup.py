"""Lookups: redirects, proxies, service addresses that fail, callers that share one, limits and retries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import (
    AuthenticationError,
    ClosedError,
    ConnectError,
    ConnectionLost,
    ProtocolError,
    RequestTimedOut,
)
from asyncgroup.pulsar.client import ClientCore
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.connection.lookup import TopicLookup
from asyncgroup.pulsar.errors import PulsarServerError, TooManyRedirects
from asyncgroup.pulsar.service_url import BrokerAddress, ServiceUrl
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.testing import Network
from tests.pulsar.scripted import PORT, Call, ScriptedPulsar, in_turn, late, no_answer, refuse
from tests.pulsar.support import HOST, TOPIC, core_of, now

OTHER = "10.0.0.2"
FIRST = "pulsar://10.0.0.1:6650"


def answer_with(**fields: Any) -> Any:
    """Return an answerer of LOOKUP."""
    return lambda call: call.answer(c.CommandLookupTopicResponse(request_id=call.request_id, **fields))


# --- brokers ----------------------------------------------------------------------------------------------------------


async def test_the_broker_of_a_topic(two_brokers: ScriptedPulsar) -> None:
    two_brokers.own("orders", OTHER)
    async with core_of(two_brokers, FIRST, listener_name="internal") as core:
        assert await core.lookup.broker_of(TOPIC) == (
            BrokerAddress(OTHER, PORT),
            BrokerAddress(OTHER, PORT),
        )
    (asked,) = two_brokers.commands(c.CommandLookupTopic)
    assert asked.topic == "persistent://public/default/orders"
    assert not asked.authoritative
    assert asked.advertised_listener_name == "internal"


async def test_a_result_is_never_kept(two_brokers: ScriptedPulsar) -> None:
    async with core_of(two_brokers, FIRST) as core:
        assert (await core.lookup.broker_of(TOPIC)).logical.host == HOST
        two_brokers.move("orders", OTHER)
        assert (await core.lookup.broker_of(TOPIC)).logical.host == OTHER


async def test_a_redirect_goes_on_at_the_other_broker_with_its_authority(two_brokers: ScriptedPulsar) -> None:
    two_brokers.first.redirects[str(TOPIC)] = OTHER
    two_brokers.own("orders", OTHER)
    async with core_of(two_brokers, FIRST) as core:
        assert (await core.lookup.broker_of(TOPIC)).logical.host == OTHER
    asked = [
        (one.host, one.command.authoritative)
        for one in two_brokers.received
        if isinstance(one.command, c.CommandLookupTopic)
    ]
    assert asked == [(HOST, False), (OTHER, True)]


async def test_redirects_without_end(two_brokers: ScriptedPulsar) -> None:
    two_brokers.first.redirects[str(TOPIC)] = OTHER
    two_brokers[OTHER].redirects[str(TOPIC)] = HOST
    async with core_of(two_brokers, FIRST) as core:
        with pytest.raises(TooManyRedirects, match=r"orders: brokers have redirected its lookup 20 times"):
            await core.lookup.broker_of(TOPIC)
        assert len(two_brokers.commands(c.CommandLookupTopic)) == 21
        assert len(two_brokers.connections) == 2
    async with core_of(two_brokers, FIRST, max_lookup_redirects=0) as core:
        with pytest.raises(TooManyRedirects):
            await core.lookup.broker_of(TOPIC)


async def test_a_redirect_to_a_broker_that_is_gone(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandLookupTopic] = answer_with(
        response=0, broker_service_url="pulsar://10.0.0.9:6650"
    )
    async with core_of(pulsar) as core:
        with pytest.raises(ConnectError, match=r"10.0.0.9:6650: Connection refused"):
            await core.lookup.broker_of(TOPIC)


async def test_through_a_proxy(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandLookupTopic] = answer_with(
        response=1, broker_service_url="pulsar://broker-3:6650", proxy_through_service_url=True
    )
    async with core_of(pulsar) as core:
        broker = await core.lookup.broker_of(TOPIC)
        assert broker == (BrokerAddress("broker-3", 6650), BrokerAddress(HOST, PORT))
        await core.pool.get(*broker)
    assert [one.proxy_to_broker_url for one in pulsar.commands(c.CommandConnect)] == [None, "broker-3:6650"]


async def test_a_standalone_that_names_itself_with_a_proxy_needs_one_connection(
    pulsar: ScriptedPulsar,
) -> None:
    pulsar.first.script[c.CommandLookupTopic] = answer_with(
        response=1, broker_service_url=FIRST, proxy_through_service_url=True
    )
    async with core_of(pulsar) as core:
        await core.pool.get(*await core.lookup.broker_of(TOPIC))
    (sent,) = pulsar.commands(c.CommandConnect)
    assert sent.proxy_to_broker_url is None


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        (
            {"response": 1, "broker_service_url_tls": "pulsar+ssl://b:6651"},
            ConnectError,
            "no pulsar address",
        ),
        ({"response": 1}, PulsarServerError, "lookup of persistent.*: UnknownError .*names no broker"),
        ({"response": 1, "broker_service_url": ""}, PulsarServerError, "names no broker"),
        ({"broker_service_url": FIRST}, PulsarServerError, "names no broker"),
        ({"response": 2}, PulsarServerError, "names no broker"),
        (
            {"response": 1, "broker_service_url": "http://b:80"},
            ProtocolError,
            "a broker's address is not valid",
        ),
        ({"response": 0, "broker_service_url": "pulsar://b:0"}, ProtocolError, "is not valid"),
    ],
)
async def test_answers_without_a_usable_address(
    pulsar: ScriptedPulsar, fields: dict[str, Any], kind: type[Exception], text: str
) -> None:
    pulsar.first.script[c.CommandLookupTopic] = answer_with(**fields)
    async with core_of(pulsar) as core:
        with pytest.raises(kind, match=text):
            await core.lookup.broker_of(TOPIC)
        assert not core.pool.connections[0].is_closed


async def test_with_tls_the_tls_address_counts(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar) as core:
        tls = ServiceUrl(
            True, (BrokerAddress(HOST, PORT),)
        )  # the transport stays plain: only the addresses are tested
        lookup = TopicLookup(tls, core.pool, PulsarConfig(), core.new_backoff, 0)
        assert (await lookup.broker_of(TOPIC)).logical == BrokerAddress(HOST, 6651)
        pulsar.first.script[c.CommandLookupTopic] = answer_with(response=1, broker_service_url=FIRST)
        with pytest.raises(ConnectError, match=r"the broker of the topic has no pulsar\+ssl address"):
            await lookup.broker_of(TOPIC)
        await lookup.aclose()


# --- service addresses ------------------------------------------------------------------------------------------------


async def test_the_next_service_address_is_tried(two_brokers: ScriptedPulsar) -> None:
    await two_brokers.first.stop()
    two_brokers.own("orders", OTHER)
    async with core_of(two_brokers) as core:
        for _ in range(5):
            assert (await core.lookup.broker_of(TOPIC)).logical.host == OTHER
        await two_brokers[OTHER].stop()
        with pytest.raises(ConnectError, match=r"10.0.0.*refused; 10.0.0"):
            await core.lookup.broker_of(TOPIC)
        await two_brokers.first.start()
        two_brokers.own("orders", HOST)
        assert (await core.lookup.broker_of(TOPIC)).logical.host == HOST


async def test_callers_at_the_same_time_each_try_every_address(two_brokers: ScriptedPulsar) -> None:
    await two_brokers.first.stop()
    two_brokers.own("orders", OTHER)
    for _ in range(4):  # whichever address is the first
        async with core_of(two_brokers) as core:
            topics = [TopicName.parse(f"t{number}") for number in range(4)]
            for topic in topics:
                two_brokers.own(str(topic), OTHER)
            found = await asyncio.gather(*(core.lookup.broker_of(topic) for topic in topics))
            assert {one.logical.host for one in found} == {OTHER}


async def test_a_wrong_credential_is_raised_without_trying_the_next_address(
    two_brokers: ScriptedPulsar,
) -> None:
    two_brokers.script[c.CommandConnect] = refuse(3, "expired")
    async with core_of(two_brokers) as core:
        with pytest.raises(AuthenticationError, match="expired"):
            await core.lookup.partitions_of(TOPIC)
        assert len(two_brokers.commands(c.CommandConnect)) == 1
        assert now() < 1


async def test_service_not_ready_closes_the_connection_and_tries_the_next_address(
    two_brokers: ScriptedPulsar,
) -> None:
    two_brokers.first.script[c.CommandLookupTopic] = refuse(6, "starting")
    async with core_of(two_brokers) as core:
        core.lookup._next = 0
        with pytest.raises(PulsarServerError, match=r"ServiceNotReady \(6\): starting"):
            await core.lookup.broker_of(TOPIC)
        await asyncio.sleep(0.1)
        assert two_brokers.first.connections == []
        assert (await core.lookup.broker_of(TOPIC)).logical.host == HOST
        assert len(two_brokers.commands(c.CommandLookupTopic, OTHER)) == 1


async def test_several_lookups_that_are_not_ready_move_to_the_next_address_once(
    two_brokers: ScriptedPulsar,
) -> None:
    two_brokers.first.script[c.CommandLookupTopic] = refuse(6, "starting")
    async with core_of(two_brokers) as core:
        core.lookup._next = 0
        topics = [TopicName.parse(f"t{number}") for number in range(4)]
        errors = await asyncio.gather(
            *(core.lookup.broker_of(topic) for topic in topics), return_exceptions=True
        )
        assert all(isinstance(error, PulsarServerError) for error in errors)
        found = await asyncio.gather(*(core.lookup.broker_of(topic) for topic in topics))
        assert {one.logical.host for one in found} == {HOST}


@pytest.mark.parametrize(
    "answer", [refuse(6), Call.cut, no_answer, Call.succeed, lambda call: call.write(b"HTTP")]
)
async def test_after_a_failure_the_next_service_address_is_asked_first(
    two_brokers: ScriptedPulsar, answer: Any
) -> None:
    two_brokers.first.script[c.CommandPartitionedTopicMetadata] = answer
    two_brokers.set_partitions("orders", 7)
    async with core_of(two_brokers, operation_timeout=5.0) as core:
        core.lookup._next = 0
        try:
            assert await core.lookup.partitions_of(TOPIC) == 7
        except RequestTimedOut:
            assert answer is no_answer
        assert await core.lookup.partitions_of(TOPIC) == 7
        assert len(two_brokers.commands(c.CommandPartitionedTopicMetadata, HOST)) == 1


async def test_too_many_refusals_move_to_the_next_service_address(two_brokers: ScriptedPulsar) -> None:
    two_brokers.first.script[c.CommandLookupTopic] = refuse(14)
    async with core_of(two_brokers, max_rejected_requests=3) as core:
        core.lookup._next = 0
        for _ in range(3):
            with pytest.raises(PulsarServerError, match="TooManyRequests"):
                await core.lookup.broker_of(TOPIC)
        assert (await core.lookup.broker_of(TOPIC)).logical.host == HOST
        assert len(two_brokers.commands(c.CommandLookupTopic, HOST)) == 3
        assert len(two_brokers.commands(c.CommandLookupTopic, OTHER)) == 1


async def test_a_lookup_whose_connection_ends(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandLookupTopic] = in_turn(Call.cut, Call.default)
    async with core_of(pulsar) as core:
        with pytest.raises(ConnectionLost, match=r"closed the connection"):
            await core.lookup.broker_of(TOPIC)
        await core.lookup.broker_of(TOPIC)


async def test_a_lookup_without_an_answer(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandLookupTopic] = no_answer
    async with core_of(pulsar, operation_timeout=20.0) as core:
        with pytest.raises(RequestTimedOut, match=r"lookup of .*orders: no answer within 20 s"):
            await core.lookup.broker_of(TOPIC)
        assert now() == pytest.approx(20.0)


# --- shared lookups ---------------------------------------------------------------------------------------------------


async def test_callers_of_the_same_time_share_a_lookup(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandLookupTopic] = late(2.0)
    async with core_of(pulsar) as core:
        found = await asyncio.gather(*(core.lookup.broker_of(TOPIC) for _ in range(50)))
        assert len(set(found)) == 1
        assert len(pulsar.commands(c.CommandLookupTopic)) == 1
        await core.lookup.broker_of(TOPIC)
        assert len(pulsar.commands(c.CommandLookupTopic)) == 2


async def test_one_cancelled_caller_of_two(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandLookupTopic] = late(2.0)
    async with core_of(pulsar) as core:
        impatient, patient = (asyncio.create_task(core.lookup.broker_of(TOPIC)) for _ in range(2))
        await asyncio.sleep(1)
        impatient.cancel()
        assert (await patient).logical.host == HOST
        assert impatient.cancelled()


async def test_each_caller_gets_its_error(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandLookupTopic] = late(2.0, refuse(11, "no such topic"))
    async with core_of(pulsar) as core:
        errors = await asyncio.gather(
            *(core.lookup.broker_of(TOPIC) for _ in range(3)), return_exceptions=True
        )
        assert len({id(error) for error in errors}) == 3
        assert all(isinstance(error, PulsarServerError) and error.name == "TopicNotFound" for error in errors)


async def test_only_so_many_lookups_run_at_once(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandLookupTopic] = late(1.0)
    async with core_of(pulsar, max_lookup_requests=3) as core:
        callers = [
            asyncio.create_task(core.lookup.broker_of(TopicName.parse(f"t{number}"))) for number in range(10)
        ]
        await asyncio.sleep(0.5)
        assert len(pulsar.commands(c.CommandLookupTopic)) == 3
        await asyncio.gather(*callers)
        assert now() == pytest.approx(4.0)
        assert core.lookup._slots.try_take(), "all slots were given back"


async def test_lookups_end_with_the_client(pulsar: ScriptedPulsar) -> None:
    pulsar.script |= dict.fromkeys(
        (c.CommandLookupTopic, c.CommandPartitionedTopicMetadata, c.CommandGetTopicsOfNamespace), no_answer
    )
    async with core_of(pulsar, max_lookup_requests=3) as core:
        callers = [
            asyncio.create_task(made)
            for made in (
                core.lookup.broker_of(TOPIC),
                core.lookup.broker_of(TOPIC),
                core.lookup.partitions_of(TOPIC),
                core.lookup.topics_of("public/default"),
                core.lookup.broker_of(TopicName.parse("waits for a slot")),
            )
        ]
        await asyncio.sleep(1)
        await core.aclose()
        for caller in callers:
            with pytest.raises(ClosedError, match="the client is closed"):
                await caller
        with pytest.raises(ClosedError):
            await core.lookup.broker_of(TOPIC)
        assert now() < 2
        assert repr(core.lookup) == "<TopicLookup at pulsar://10.0.0.1:6650: 0 running>"


# --- partitions and topics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("supported", [True, False])
async def test_partitions_are_asked_for_without_creation_if_the_broker_can(
    pulsar: ScriptedPulsar, create: bool, supported: bool
) -> None:
    pulsar.set_partitions("orders", 7)
    if not supported:
        pulsar.first.features = c.FeatureFlags()
    async with core_of(pulsar) as core:
        assert await core.lookup.partitions_of(TOPIC, create=create) == 7
        assert await core.lookup.partitions_of(TopicName.parse("whole"), create=create) == 0
    for asked in pulsar.commands(c.CommandPartitionedTopicMetadata):
        assert asked.metadata_auto_creation_enabled is (create or not supported)


@pytest.mark.parametrize("code", [11, 4, 17])
async def test_errors_that_do_not_pass_are_raised_at_once(pulsar: ScriptedPulsar, code: int) -> None:
    pulsar.first.script[c.CommandPartitionedTopicMetadata] = refuse(code)
    async with core_of(pulsar) as core:
        with pytest.raises(PulsarServerError, match=r"partitions of persistent://public/default/orders: "):
            await core.lookup.partitions_of(TOPIC, create=False)
        assert now() < 1


async def test_a_failure_without_a_reason(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandPartitionedTopicMetadata] = in_turn(
        lambda call: call.answer(
            c.CommandPartitionedTopicMetadataResponse(request_id=call.request_id, response=1)
        ),
        Call.default,
    )
    pulsar.set_partitions("orders", 7)
    async with core_of(pulsar) as core:
        assert await core.lookup.partitions_of(TOPIC) == 7


@pytest.mark.parametrize("answer", [refuse(0), refuse(6), refuse(14), Call.cut])
async def test_what_may_pass_is_repeated_until_the_operation_timeout(
    pulsar: ScriptedPulsar, answer: Any
) -> None:
    pulsar.first.script[c.CommandPartitionedTopicMetadata] = answer
    async with core_of(pulsar, operation_timeout=30.0) as core:
        with pytest.raises((PulsarServerError, ConnectionLost)):
            await core.lookup.partitions_of(TOPIC)
        assert 10 < now() <= 30
        assert 5 <= len(pulsar.commands(c.CommandPartitionedTopicMetadata)) <= 12


async def test_a_retry_succeeds(pulsar: ScriptedPulsar) -> None:
    pulsar.set_partitions("orders", 7)
    pulsar.first.script[c.CommandPartitionedTopicMetadata] = in_turn(
        refuse(6), Call.cut, refuse(0), Call.default
    )
    async with core_of(pulsar) as core:
        assert await core.lookup.partitions_of(TOPIC) == 7
        assert 0.3 < now() < 2


async def test_the_last_request_ends_with_the_operation_timeout(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandPartitionedTopicMetadata] = in_turn(late(10.0, refuse(0)), no_answer)
    async with core_of(pulsar, operation_timeout=15.0) as core:
        with pytest.raises(RequestTimedOut):
            await core.lookup.partitions_of(TOPIC)
        assert now() == pytest.approx(15.0, abs=0.5)


async def test_a_broker_that_is_down_for_a_while(pulsar: ScriptedPulsar) -> None:
    pulsar.set_partitions("orders", 7)
    await pulsar.first.stop()
    async with core_of(pulsar) as core:
        asking = asyncio.create_task(core.lookup.partitions_of(TOPIC))
        await asyncio.sleep(5)
        await pulsar.first.start()
        assert await asking == 7
        assert now() < 13


async def test_topics_of_a_namespace(pulsar: ScriptedPulsar) -> None:
    pulsar.topics = ["persistent://a/b/one", "persistent://a/b/two", "persistent://a/c/three"]
    async with core_of(pulsar) as core:
        both = await asyncio.gather(*(core.lookup.topics_of("a/b", "t.*") for _ in range(2)))
        assert [list(one.topics) for one in both] == [["persistent://a/b/one", "persistent://a/b/two"]] * 2
        (asked,) = pulsar.commands(c.CommandGetTopicsOfNamespace)
        assert (asked.namespace, asked.topics_pattern, asked.mode) == ("a/b", "t.*", 0)
        await core.lookup.topics_of("a/b")
        await core.lookup.topics_of("a/c")
        assert len(pulsar.commands(c.CommandGetTopicsOfNamespace)) == 3


async def test_a_frozen_service_address(two_brokers: ScriptedPulsar, network: Network) -> None:
    """A connect that hangs takes its time limit; then the other address answers."""
    network.blackhole(HOST)
    two_brokers.own("orders", OTHER)

    async def find(core: ClientCore) -> None:
        core.lookup._next = 0
        assert (await core.lookup.broker_of(TOPIC)).logical.host == OTHER

    async with core_of(two_brokers, connect_timeout=3.0) as core:
        await find(core)
        assert now() == pytest.approx(3.0)
        assert core.lookup._next == 1, "the address that answers is asked next"


async def test_slow_redirects_end_with_the_operation_timeout(two_brokers: ScriptedPulsar) -> None:
    for host, other in (("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")):
        two_brokers[host].redirects[str(TOPIC)] = other
    two_brokers.script[c.CommandLookupTopic] = late(8.0)
    async with core_of(two_brokers, operation_timeout=30.0) as core:
        began = now()
        with pytest.raises(
            RequestTimedOut, match="lookup of persistent://public/default/orders: no answer within 6 s"
        ):
            await core.lookup.broker_of(TOPIC)
        assert now() - began == pytest.approx(30.0, abs=0.1)
