"""Names of aiokafka, kafka-python and confluent-kafka: each error says what the name is here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import asyncgroup
from asyncgroup import Claim, Cluster, ConfigError, Consumer, ConsumerGroup, OffsetManager, Producer, Session
from asyncgroup.consumer import PartitionConsumer
from asyncgroup.consumer.foreign_names import CONSUMER, READER
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.group.foreign_names import CLAIM, GROUP, SESSION
from asyncgroup.group.topics.topics import check_topics
from asyncgroup.producer.arguments import check_records
from asyncgroup.producer.foreign_names import PRODUCER
from asyncgroup.workqueue import Delivery, WorkQueue
from tests.public_members import public_members

members = cache(public_members)

TABLES: Mapping[type, Mapping[str, str]] = {
    ConsumerGroup: GROUP, Session: SESSION, Claim: CLAIM, Consumer: CONSUMER, Producer: PRODUCER, PartitionConsumer: READER,
}  # fmt: skip
KAFKA_PYTHON = {
    "consumer": "assign assignment beginning_offsets bootstrap_connected close commit commit_async committed end_offsets "
    "group_metadata highwater metrics offsets_for_times partitions_for_topic pause paused poll position resume seek "
    "seek_to_beginning seek_to_end subscribe subscription topics unsubscribe",
    "producer": "abort_transaction begin_transaction bootstrap_connected close commit_transaction flush init_transactions "
    "metrics partitions_for send send_offsets_to_transaction",
}
"""The methods of kafka-python 3.0, whose import takes a second."""

CONSUMERS = {*dir(AIOKafkaConsumer), *dir(confluent_kafka.Consumer), *KAFKA_PYTHON["consumer"].split()}
PRODUCERS = {*dir(AIOKafkaProducer), *dir(confluent_kafka.Producer), *KAFKA_PYTHON["producer"].split()}


@pytest.mark.parametrize(
    ("cls", "name", "words"),
    [
        (ConsumerGroup, "seek", r"claim\.seek\(offset\) of a claim in group\.session\.claims$"),
        (ConsumerGroup, "getmany", r"claim\.batches\(max_records=…, max_wait=…\)"),
        (ConsumerGroup, "seekToBeginning", r"claim\.seek\('earliest'\)"),
        (Session, "poll", "async for record in claim, of a claim in session.claims"),
        (Claim, "commit", r"claim\.mark\(record\); auto_commit, or await session\.commit\(\)"),
        (Consumer, "subscribe", "async with ConsumerGroup"),
        (Producer, "send_and_wait", r"await producer\.send\(topic, value\)$"),
        (Producer, "produce", "send_nowait"),
        (ConsumerGroup, "colour", "no attribute 'colour'$"),
    ],
)
def test_the_error_says_what_a_name_is_here(cls: type, name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(cls, name)
    with pytest.raises(AttributeError, match=words):
        getattr(object.__new__(cls), name)


@pytest.mark.parametrize(
    ("cls", "given", "words"),
    [
        (
            ConsumerGroup,
            {"auto_offset_reset": "earliest"},
            r"a key of the configuration: config=ConsumerConfig\(auto_offset_reset=…\)$",
        ),
        (
            ConsumerGroup,
            {"session_timeout_ms": 10_000},
            r"in config=ConsumerConfig\(…\), did you mean session_timeout=10\.0, in seconds",
        ),
        (ConsumerGroup, {"hook": []}, r"there is no such argument; did you mean hooks\?$"),
        (ConsumerGroup, {"value_deserializer": str}, "there is no such argument; records have bytes"),
        (Consumer, {"group_id": "billing"}, "an argument of ConsumerGroup"),
        (Producer, {"acks": "all"}, r"config=ProducerConfig\(acks=…\)$"),
        (Cluster, {"sasl_password": "hunter2"}, r"sasl_password='\[hidden\]' .*Plain\(username, password\)"),
        (OffsetManager, {"colour": "red"}, "colour='red' is not allowed: there is no such argument$"),
    ],
)
def test_an_unknown_argument(cls: Any, given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cls("127.0.0.1:9092", **given)


@pytest.mark.parametrize(
    "made",
    [
        Consumer,
        Producer,
        partial(ConsumerGroup, group_id="billing"),
        partial(WorkQueue, group_id="billing", topics="orders"),
        partial(Consumer, "127.0.0.1:9092"),
        partial(Producer, "127.0.0.1:9092"),
    ],
)
def test_a_dictionary_of_properties(made: Callable[[Any], object]) -> None:
    """As confluent-kafka has it; found here: the error showed the password."""
    with pytest.raises(ConfigError, match=r"='\[hidden\]' is not allowed: .*from_properties\(…\)") as caught:
        made({"bootstrap.servers": "127.0.0.1:9092", "sasl.password": "hunter2"})
    assert "hunter2" not in str(caught.value)


async def test_a_loop_over_a_group() -> None:
    group: Any = ConsumerGroup("127.0.0.1:9092", "billing")
    with pytest.raises(
        TypeError, match=r"'async for' cannot read a ConsumerGroup; .* group\.records\(topics\)"
    ):
        async for _ in group:
            pass
    with pytest.raises(TypeError, match="'Consumer' object is not iterable"):
        for _ in Consumer("127.0.0.1:9092"):  # type: ignore[attr-defined]
            pass


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda group: ConsumerGroup(group, "billing"), "bootstrap_servers="),
        (Consumer, "bootstrap_servers="),
        (Producer, "bootstrap_servers="),
        (Cluster, "bootstrap_servers="),
        (lambda group: Consumer("127.0.0.1:9092", hooks=group), "hooks=.* a list of hook objects"),
        (lambda group: ConsumerGroup("127.0.0.1:9092", "billing", interceptors=group), "interceptors="),
        (lambda group: Producer("127.0.0.1:9092", interceptors=group), "interceptors="),
        (lambda group: check_topics(group, "classic"), "topics="),
        (check_records, "records="),
    ],
)
def test_a_group_in_place_of_a_list(made: Callable[[Any], object], words: str) -> None:
    """Found here: with a hint for `for` the group was an iterable, and the argument was not named."""
    with pytest.raises(ConfigError, match=words):
        made(ConsumerGroup("127.0.0.1:9092", "billing"))


@pytest.mark.parametrize("cls", [*TABLES, WorkQueue, Delivery])
def test_no_hint_makes_an_iterable(cls: type) -> None:
    assert not issubclass(cls, Iterable)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ConsumerGroup, CONSUMERS), (Consumer, CONSUMERS), (Producer, PRODUCERS)]
)
def test_every_public_name_of_the_others_is_ours_or_has_a_hint(ours: type, theirs: set[str]) -> None:
    names = {name for name in theirs if not name.startswith("_")}
    assert len(names) > 15
    assert names - members(ours) - TABLES[ours].keys() == set()
    for name in names & TABLES[ours].keys():
        with pytest.raises(AttributeError, match="here it is"):
            getattr(ours, name)


@pytest.mark.parametrize("cls", TABLES)
def test_a_hint_hides_no_name_of_ours_and_is_not_listed(cls: Any) -> None:
    listed = members(cls)
    assert listed
    assert not listed & TABLES[cls].keys()
    with pytest.raises(TypeError, match=f"{cls.__name__} has '__repr__' itself"):
        add_foreign_names(cls, {"__repr__": "a hint"})


@pytest.mark.parametrize(
    ("spec", "own"),
    [
        (ConsumerGroup("127.0.0.1:9092", "billing"), "commit"),
        ([name for name in dir(Claim) if hasattr(Claim, name)], "mark"),
    ],
)
def test_a_mock_without_foreign_names(spec: object, own: str) -> None:
    """As the guide shows it, in the page on the testing kit."""
    mock = Mock(spec=spec)
    assert hasattr(mock, own)
    assert not hasattr(mock, "commit_sync")


def test_hints_name_what_exists() -> None:
    """Each `claim.x`, `group.x` … in a hint is a public name of that class."""
    classes = {
        "group": ConsumerGroup,
        "session": Session,
        "claim": Claim,
        "consumer": Consumer,
        "producer": Producer,
        "reader": PartitionConsumer,
    }
    named = {
        (thing, name)
        for table in TABLES.values()
        for hint in table.values()
        for thing, name in re.findall(r"\b(group|session|claim|consumer|producer|reader)\.(\w+)", hint)
    }
    assert len(named) > 30
    public = {thing: members(cls) for thing, cls in classes.items()}
    assert {(thing, name) for thing, name in named if name not in public[thing]} == set()


@pytest.mark.parametrize(
    ("page", "consumers", "producers"),
    [
        ("from-aiokafka.md", "## Methods of the consumer", "## Methods of the producer"),
        ("from-confluent-kafka.md", "## Methods of the consumer", "## Methods of the producer"),
        ("from-java.md", "## KafkaConsumer", "## KafkaProducer"),
    ],
)
def test_the_guide_knows_the_same_names(page: str, consumers: str, producers: str) -> None:
    """The first columns of its tables of methods: each name is ours, or has a hint."""
    text = Path(asyncgroup.__file__).parent.joinpath("guide", page).read_text("utf-8")
    for heading, cls in ((consumers, ConsumerGroup), (producers, Producer)):
        rows = text.partition(heading)[2].partition("\n## ")[0]
        cells = " ".join(line.split("|")[1] for line in rows.splitlines() if line.startswith("| `"))
        names = set(re.findall(r"`(\w+)\(", cells))
        assert len(names) > 3
        assert names - {*dir(cls), *vars(cls)} == set(), page
