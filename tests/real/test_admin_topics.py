"""Admin on a real Kafka: topics, partitions, records and configurations, and the errors of each name."""

from __future__ import annotations

from uuid import uuid4

from asyncgroup import Producer, TopicPartition
from asyncgroup.admin import Admin, ConfigChanges, NewTopic
from asyncgroup.errors import BrokerError
from tests.real.support import RunningKafka, until_shown


async def test_a_topic_from_its_creation_to_its_end(apache_kafka: RunningKafka) -> None:
    name = f"admin-{uuid4().hex[:8]}"
    async with Admin(apache_kafka.bootstrap_servers) as admin:
        new = NewTopic(2, 1, {"retention.ms": "60000"})
        assert not (await admin.create_topics({name: new}, validate_only=True)).errors
        assert name not in {topic.name for topic in await admin.list_topics()}
        (await admin.create_topics({name: new})).raise_first()
        again = (await admin.create_topics({name: 1}))[name]
        assert isinstance(again, BrokerError)
        assert again.name == "TOPIC_ALREADY_EXISTS"

        (await admin.create_partitions({name: 3})).raise_first()
        topic = (await admin.describe_topics([name])).raise_first()[name]
        assert [partition.leader is None for partition in topic.partitions] == [False] * 3

        async with Producer(apache_kafka.bootstrap_servers) as producer:
            for _ in range(5):
                await producer.send(name, b"x", partition=0)
        tp = TopicPartition(name, 0)
        assert (await admin.delete_records({tp: 3})).raise_first() == {tp: 3}
        out_of_range = (await admin.delete_records({tp: 9}))[tp]
        assert isinstance(out_of_range, BrokerError)
        assert out_of_range.name == "OFFSET_OUT_OF_RANGE"

        found = (await admin.describe_configs("topic", [name])).raise_first()[name]["retention.ms"]
        assert (found.value, found.source) == ("60000", "DYNAMIC_TOPIC_CONFIG")
        changes = ConfigChanges(append={"cleanup.policy": "compact"}, delete=["retention.ms"])
        (await admin.alter_configs("topic", {name: changes})).raise_first()

        async def changed() -> tuple[str | None, str]:
            configs = (await admin.describe_configs("topic", [name])).raise_first()[name]
            return configs["cleanup.policy"].value, configs["retention.ms"].source

        await until_shown(changed, ("delete,compact", "DEFAULT_CONFIG"))

        (await admin.delete_topics([name])).raise_first()
        gone = (await admin.delete_topics([name]))[name]
        assert isinstance(gone, BrokerError)
        assert gone.name == "UNKNOWN_TOPIC_OR_PARTITION"
