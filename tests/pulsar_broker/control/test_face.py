"""What tests do with an EmbeddedPulsar: options, seeds, views of brokers, topics and subscriptions, and what it refuses."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import asyncgroup.pulsar_broker
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar_broker import (
    BrokerView,
    EmbeddedPulsar,
    ProducerView,
    PulsarExchange,
    PulsarOptions,
    ServerFailure,
    SubscriptionView,
)
from tests.pulsar_broker.wire_client import WireClient

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

EARLY = PulsarConsumerConfig(initial_position="earliest")


def values(pulsar: EmbeddedPulsar, topic: str, **options: Any) -> list[bytes | None]:
    return [message.value for message in pulsar.messages(topic, **options)]


# --- seeds ------------------------------------------------------------------------------------------------------------


async def test_topics_subscriptions_and_messages_from_the_start() -> None:
    topics = {
        "orders": {"partitions": 2, "subscriptions": "billing", "messages": ["a", ("k", "v"), b"b"]},
        "public/extra/bills": 0,
    }
    async with EmbeddedPulsar(topics=topics, namespaces=["public/extra"]) as pulsar:
        assert pulsar.topics == ["persistent://public/default/orders", "persistent://public/extra/bills"]
        assert pulsar.topic("orders").partitions == 2
        assert pulsar.topic("public/extra/bills").partitions == 0
        assert pulsar.subscription("orders", "billing").backlog == 3
        assert sorted(filter(None, values(pulsar, "orders"))) == [b"a", b"b", b"v"]
        async with (
            PulsarClient(pulsar.service_url) as client,
            client.subscribe("orders", "billing", type="shared") as consumer,
        ):
            assert sorted([(await consumer.receive()).value for _ in range(3)]) == [b"a", b"b", b"v"]
    async with EmbeddedPulsar(topics=["a", "b"]) as pulsar:
        assert [pulsar.topic(name).partitions for name in ("a", "b")] == [0, 0]
    async with EmbeddedPulsar(PulsarOptions(topics="a", deduplication=True)) as pulsar:
        assert pulsar.topic("a").messages == 0


async def test_messages_are_produced_without_a_client() -> None:
    async with EmbeddedPulsar(topics={"t": 3, "u": 0}) as pulsar:
        ids = pulsar.produce(
            "t", "a", b"b", None, ("k", "c"), (b"\xff", b"d"), properties={"n": "1"}, event_time=7
        )
        assert [each.partition for each in ids[:3]] == [0, 1, 2]
        [last] = pulsar.produce("t", "e", partition=1)
        assert (last.partition, values(pulsar, "t", partition=1)[-1]) == (1, b"e")
        found = {message.value: message for message in pulsar.messages("t")}
        assert found[b"c"].key == b"k"
        assert found[b"d"].key == b"\xff"
        assert (found[b"a"].properties, found[b"a"].event_time) == ({"n": "1"}, 7)
        assert found[b"a"].publish_time > 0
        assert (found[None].message_id, found[None].partition) == (ids[2], 2)
        assert found[b"e"].topic == "persistent://public/default/t"
        async with PulsarClient(pulsar.service_url) as client, client.producer("t") as producer:
            for number in range(10):
                sent = await producer.send(b"", key=f"k{number}")
                [seeded] = pulsar.produce("t", (f"k{number}", ""))
                assert sent.partition == seeded.partition, "keys go where the client puts them"
        for wrong, message in [
            ({"partition": 3}, "has partitions 0 to 2, not 3"),
            ({"properties": {"n": 1}}, "properties={'n': 1} is not allowed: text by text"),
        ]:
            with pytest.raises((ConfigError, UsageError), match=re.escape(message)):
                pulsar.produce("t", "a", **wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="value=3 is not allowed: bytes, text or None"):
            pulsar.produce("u", "a", 3)  # type: ignore[arg-type]
        assert pulsar.messages("u") == [], "all or none"


async def test_messages_of_clients_are_decoded() -> None:
    async with EmbeddedPulsar() as pulsar, PulsarClient(pulsar.service_url) as client:
        batching = PulsarProducerConfig(compression="zlib", compression_min_size=0, producer_name="p")
        async with client.producer("t", batching) as producer:
            for number in range(5):
                await producer.enqueue(b"%d" * 50 % ((number,) * 50), key="k", properties={"n": str(number)})
            await producer.flush()
            await producer.send(b"later", deliver_after=60.0)
        *batch, later = pulsar.messages("t")
        assert [message.value for message in batch] == [b"%d" % number * 50 for number in range(5)]
        assert [message.message_id.batch_index for message in batch] == list(range(5))
        assert batch[3].properties == {"n": "3"}
        assert [message.sequence_id for message in batch] == list(range(5))
        assert later.deliver_at is not None
        # the delay begins when it is sent, and the message is published a moment later
        assert 59_000 < later.deliver_at - later.publish_time <= 60_000
        assert later.producer_name == "p"
        value = bytes(range(256)) * 30 * 1024  # above the limit of 5 MiB
        async with client.producer("c", PulsarProducerConfig(chunking=True, batching=False)) as producer:
            await producer.send(value, key="k")
        [whole] = pulsar.messages("c")
        assert (whole.value, whole.key) == (value, b"k")


# --- views ------------------------------------------------------------------------------------------------------------


async def test_a_subscription_is_seen_while_its_consumers_work() -> None:
    async with EmbeddedPulsar(topics={"t": 2}) as pulsar, PulsarClient(pulsar.service_url) as client:
        pulsar.create_subscription("t", "s")
        pulsar.produce("t", *"abcdef")
        view = pulsar.subscription("t", "s")
        assert (view.type, view.durable, view.backlog, view.consumers) == (None, True, 6, ())
        config = PulsarConsumerConfig(consumer_name="c")
        async with client.subscribe("t", "s", type="key_shared", config=config) as consumer:
            first = await consumer.receive()
            consumer.ack(first)
            await consumer.flush()
            await asyncio.sleep(1)
            view = pulsar.subscription("t", "s")
            assert isinstance(view, SubscriptionView)
            assert (view.topic, view.type) == ("persistent://public/default/t", "Key_Shared")
            assert (view.backlog, view.acknowledged, view.unacked) == (5, 1, 5)
            assert [(each.name, each.active, each.blocked) for each in view.consumers] == [
                ("c", True, False)
            ] * 2
            assert view.permits == sum(each.permits for each in view.consumers) > 0
            assert view.mark_delete[first.partition][:2] == first.message_id[:2]
            other = view.mark_delete[1 - first.partition]
            assert (other.entry_id, other.partition) == (-1, 1 - first.partition)
        assert pulsar.subscription("t-partition-0", "s").mark_delete[0].partition == 0
        with pytest.raises(UsageError, match=r"topic 't' has no subscription 'x'; it has \['s'\]"):
            pulsar.subscription("t", "x")


async def test_a_topic_and_its_producers() -> None:
    async with (
        EmbeddedPulsar(2, topics={"t": 2, "u": 0}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
    ):
        assert pulsar.topic("t").brokers == (None, None)
        pulsar.unload("t", to=2)
        config = PulsarProducerConfig(producer_name="p", access_mode="exclusive")
        async with client.producer("t", config) as producer:
            sent = await producer.send(b"a")
            view = pulsar.topic("t")
            assert view.producers == tuple(
                ProducerView(name="p", partition=number, access_mode="Exclusive") for number in range(2)
            )
            assert (view.messages, view.brokers, view.terminated) == (1, (2, 2), False)
            assert view.last_message_ids[sent.partition][:2] == sent[:2]
            assert view.last_message_ids[1 - sent.partition][:2] == (-1, -1)
        assert pulsar.brokers[2].topics == tuple(
            f"persistent://public/default/t-partition-{n}" for n in (0, 1)
        )
        pulsar.terminate("t")
        assert pulsar.topic("t").terminated
        with pytest.raises(ServerFailure, match="TopicTerminatedError"):
            pulsar.produce("t", "b")
        pulsar.delete_topic("t")
        with pytest.raises(
            UsageError, match=r"no topic 't'; the topics are \['persistent://public/default/u'\]"
        ):
            pulsar.messages("t")


async def test_messages_of_transactions_and_the_open_ones() -> None:
    topics = {"t": {"subscriptions": "s"}}
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650, topics=topics, auto_create_topics=False) as pulsar,
        WireClient.of(pulsar.service_url) as client,
    ):
        await client.connect_coordinator()
        producer = await client.produce_to("t")
        await producer.send(b"plain")
        committed, aborted, left = [await client.begin("t") for _ in range(3)]
        for transaction in (committed, aborted, left):
            await producer.send(b"%d" % transaction[1], transaction=transaction)
        assert await client.add_subscription(left, "t", "s") == "ok"
        await client.commit(committed)
        await client.abort(aborted)
        assert [(each.value, each.transaction, each.committed) for each in pulsar.messages("t")] == [
            (b"plain", None, True),
            (b"0", "(0,0)", True),
            (b"1", "(0,1)", False),
            (b"2", "(0,2)", False),
        ]
        assert pulsar.subscription("t", "s").backlog == 3, "without the aborted one, and without markers"
        [found] = pulsar.transactions.values()
        topic = "persistent://public/default/t"
        assert (found.id, found.topics, found.subscriptions) == ("(0,2)", (topic,), ((topic, "s"),))
        assert found.deadline - found.opened_at == 60_000
        await client.commit(left)
        assert pulsar.transactions == {}
        assert pulsar.messages("t")[-1].committed


# --- brokers ----------------------------------------------------------------------------------------------------------


async def test_brokers_stop_start_and_lose_connections() -> None:
    async with EmbeddedPulsar(2, topics="t") as pulsar, PulsarClient(pulsar.service_url) as client:
        pulsar.unload("t", to=2)
        port = pulsar.brokers[2].port
        async with client.producer("t") as producer:
            await producer.send(b"a")
            await pulsar.restart_broker(2)
            assert (pulsar.brokers[2].port, pulsar.brokers[2].running) == (port, True)
            await producer.send(b"b")
            await pulsar.stop_broker(2)
            assert isinstance(pulsar.brokers[2], BrokerView)
            assert (pulsar.brokers[2].running, pulsar.brokers[2].connections) == (False, 0)
            await producer.send(b"c")
            assert pulsar.topic("t").brokers == (1,)
            await pulsar.start_broker(2)
            pulsar.cut()
            await producer.send(b"d")
            assert values(pulsar, "t") == [b"a", b"b", b"c", b"d"]
        with pytest.raises(UsageError, match=r"there is no broker 3; the brokers are \[1, 2\]"):
            await pulsar.stop_broker(3)
    assert not pulsar.brokers[1].running


async def test_a_slow_broker() -> None:
    async with EmbeddedPulsar(topics="t") as pulsar, PulsarClient(pulsar.service_url) as client:
        async with client.producer("t") as producer:
            pulsar.slow_broker(1, 2.0)
            loop = asyncio.get_running_loop()
            begun = loop.time()
            await producer.send(b"a")
            assert loop.time() - begun >= 2
            pulsar.slow_broker(1, 0)
        with pytest.raises(ConfigError, match="delay"):
            pulsar.slow_broker(1, -1)


async def test_brokers_of_one_host_have_consecutive_ports_and_an_advertised_host() -> None:
    assert PulsarOptions(brokers=3, port=6650).addresses == [
        ("127.0.0.1", port) for port in (6650, 6651, 6652)
    ]
    assert PulsarOptions(hosts=["a", "b", "a"], port=1).addresses == [("a", 1), ("b", 1), ("a", 2)]
    async with EmbeddedPulsar(2, host="10.0.0.1", port=6650, advertised_host="pulsar.example") as pulsar:
        assert pulsar.service_url == "pulsar://pulsar.example:6650,pulsar.example:6651"
        assert pulsar.brokers[1].advertised_host == "pulsar.example"
        with pytest.raises(UsageError, match=r"no admin API: EmbeddedPulsar\(admin=True\)"):
            _ = pulsar.admin_url


# --- topics that do not exist -----------------------------------------------------------------------------------------


async def test_unknown_topics_are_reported_and_those_for_copies_are_created() -> None:
    unknown: list[str] = []
    async with EmbeddedPulsar(topics={"t": 2}, auto_create_topics=False) as pulsar:
        pulsar.on_unknown_topic(unknown.append)
        async with PulsarClient(pulsar.service_url) as client:
            for name in ("u", "u", "persistent://pulsar/system/v"):
                with pytest.raises(PulsarServerError, match="TopicNotFound"):
                    async with client.producer(name):
                        pass
            for name in ("t-s-RETRY", "t-partition-0-s-DLQ"):
                async with client.producer(name) as producer:
                    await producer.send(b"a")
            pulsar.delete_topic("t")
            with pytest.raises(PulsarServerError, match="TopicNotFound"):
                async with client.producer("t"):
                    pass
    assert unknown[0] == "u"
    assert set(unknown) == {"u", "persistent://pulsar/system/v"}


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "orders"}, "an EmbeddedPulsar has no such option; did you mean topics?"),
        ({"nodes": 3}, "an EmbeddedPulsar has no such option; did you mean brokers?"),
        ({"creates_topics": True}, "an EmbeddedPulsar has no such option; did you mean auto_create_topics?"),
        ({"brokers": "3"}, "brokers='3' is not allowed: a whole number, such as 1"),
        ({"brokers": 0}, "brokers=0 is not allowed: 1 or more"),
        ({"auto_create_topics": "no"}, "auto_create_topics='no' is not allowed: True or False"),
        ({"default_partitions": -1}, "default_partitions=-1 is not allowed: 0 (no partitions) or more"),
        ({"failover_delay": "1"}, "failover_delay='1' is not allowed: a number of seconds, such as 1"),
        ({"failover_delay": -1.0}, "failover_delay=-1.0 is not allowed: seconds, 0 or more"),
        ({"hosts": "localhost"}, "hosts='localhost' is not allowed: a list of one address for each broker"),
        ({"hosts": ["a", "b"], "brokers": 3}, "hosts=['a', 'b'] is not allowed: one for each of 3 brokers"),
        ({"port": 65535, "brokers": 2}, "port=65535 is not allowed: at most 65534 for these brokers"),
        ({"admin_port": 70000}, "admin_port=70000 is not allowed: a port, 0 to 65535"),
        ({"host": "0.0.0.0"}, "host='0.0.0.0' is not allowed: only with an advertised_host"),
        ({"namespaces": "orders"}, "namespaces='orders' is not allowed: a list of names"),
        ({"topics": 7}, "topics=7 is not allowed: a name, a list of names, or partitions by name"),
        ({"topics": {3: 1}}, "is not allowed: partitions by name, which is a text"),
        ({"topics": {"t": {"partition": 3}}}, "a topic has messages, partitions, subscriptions, not"),
        (
            {"topics": {"t": -1}},
            "partitions=-1 is not allowed: a whole number, 0 (a topic without partitions)",
        ),
        ({"topics": {"t": {"messages": "a"}}}, "messages='a' is not allowed: a list of values"),
        ({"topics": {"t": {"messages": [3]}}}, "value=3 is not allowed: bytes, text or None"),
        ({"topics": {"t": {"subscriptions": 3}}}, "subscriptions=3 is not allowed: a list of names"),
        ({"topics": {"a/b": 1}}, "topic 'a/b': a name is `topic`"),
        ({"history_limit": -1}, "history_limit=-1 is not allowed: 0 or more"),
    ],
)
async def test_mistakes_in_the_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        EmbeddedPulsar(**options)


async def test_other_mistakes() -> None:
    with pytest.raises(UsageError, match="port: an option may not be given beside PulsarOptions"):
        EmbeddedPulsar(PulsarOptions(), port=1)
    async with EmbeddedPulsar(topics="t") as pulsar:
        for create, message in [
            (lambda: pulsar.create_topic("t"), "NotAllowedError: This topic already exists"),
            (lambda: pulsar.create_topic("x/y/z"), "TopicNotFound: Namespace not found: x/y"),
            (lambda: pulsar.create_topic("u", -1), "partitions=-1 is not allowed"),
            (lambda: pulsar.update_partitions("t", 3), "NotAllowedError"),
            (
                lambda: pulsar.create_subscription("t", "s", position="first"),
                "position='first' is not allowed",
            ),
            (lambda: pulsar.create_subscription("u", "s"), "no topic 'u'"),
            (lambda: pulsar.unload("u"), "no topic 'u'"),
            (lambda: pulsar.unload("t", to=2), "there is no broker 2"),
            (lambda: pulsar.delete_topic("u"), "no topic 'u'"),
            (lambda: pulsar.messages("t", 1), "topic 't' has partitions 0 to 0, not 1"),
        ]:
            with pytest.raises((ConfigError, ServerFailure, UsageError), match=re.escape(message)):
                create()
        with pytest.raises(UsageError, match="can be entered only once"):
            await pulsar.__aenter__()
    with pytest.raises(UsageError, match="use it inside its `async with` block"):
        never = EmbeddedPulsar()
        never.create_topic("t")
        never.produce("t", "a")


async def test_names_of_a_kafka_cluster_say_what_they_are_here() -> None:
    pulsar: Any = EmbeddedPulsar()
    for name, hint in [
        ("bootstrap_servers", "pulsar.service_url"),
        ("nodes", "pulsar.brokers"),
        ("records", "pulsar.messages(topic)"),
        ("stop_node", "pulsar.stop_broker(broker)"),
        ("create_partitioned_topic", "pulsar.create_topic(topic, partitions)"),
    ]:
        with pytest.raises(AttributeError, match=re.escape(f"here it is: {hint}")):
            getattr(pulsar, name)


def test_without_an_event_loop() -> None:
    with pytest.raises(UsageError, match=r"asyncgroup\.testing\.PulsarServer runs one in a thread"):
        EmbeddedPulsar().__aenter__().send(None)


# --- the public names -------------------------------------------------------------------------------------------------

FACE = {
    *(
        "service_url",
        "admin_url",
        "brokers",
        "stop_broker",
        "start_broker",
        "restart_broker",
        "slow_broker",
        "cut",
    ),
    *("accept_token", "expire_token"),
    *("topics", "topic", "create_topic", "update_partitions", "delete_topic"),
    *("migrate", "terminate", "unload"),
    *("produce", "messages", "create_subscription", "subscription", "transactions"),
    *("faults", "history", "on_unknown_topic"),
}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


async def test_the_public_members() -> None:
    assert public(EmbeddedPulsar()) == FACE
    async with EmbeddedPulsar(topics="t") as pulsar, PulsarClient(pulsar.service_url) as client:
        fault = pulsar.faults.on("Producer")
        async with client.producer("t"):
            pass
        assert public(pulsar.faults) == {"on", "unused", "clear"}
        assert public(fault) == {
            *("error", "delay", "hold", "release", "answer", "mutate", "drop", "disconnect", "observe"),
            *("optional", "cancel", "hits", "wait_hit"),
        }
        assert public(pulsar.history) == {"of", "wait_for", "story", "clear", "bytes", "dropped", "recording"}
        assert isinstance(pulsar.history[0], PulsarExchange)
        assert public(pulsar.history[0]) == {
            *(
                "time",
                "node_id",
                "client_id",
                "api",
                "version",
                "request",
                "request_bytes",
                "topic",
                "subscription",
            ),
            *("response", "response_bytes", "answered_at", "error", "duration"),
        }


def test_every_public_name_is_there() -> None:
    module = asyncgroup.pulsar_broker
    assert sorted(module.__all__) == module.__all__
    assert all(getattr(module, name).__name__ == name for name in module.__all__)
