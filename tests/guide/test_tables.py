"""The tables of the guide are complete and agree with the code and with the other clients."""

from __future__ import annotations

import inspect
import re
from typing import Any

import aiokafka
import confluent_kafka
import confluent_kafka.aio
import pytest

from tests.guide.pages import PAGES, page
from tests.guide.tables import PLACE, TABLES, table_of


@pytest.mark.parametrize("name", TABLES)
def test_a_generated_table_is_up_to_date(name: str) -> None:
    """`python -m tests.guide.tables` writes them."""
    if name.startswith("AIOKafka") and aiokafka.__version__.startswith("0.13."):
        pytest.skip("the table has the arguments of aiokafka 0.14")
    (found,) = [place[3] for each in PAGES for place in PLACE.finditer(page(each)) if place[2] == name]
    assert found == table_of(name)


def first_cells(name: str, begin: str, end: str) -> str:
    """Return the first cells of the table rows between two headings."""
    section = page(name).partition(f"\n## {begin}\n")[2].partition(f"\n## {end}\n")[0]
    return "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("|"))


def methods(*classes: type) -> set[str]:
    return {name for cls in classes for name in dir(cls) if not name.startswith("_")}


CLIENTS: list[tuple[str, str, str, set[str]]] = [
    (
        "from-aiokafka",
        "Methods of the consumer",
        "Arguments of AIOKafkaConsumer",
        methods(aiokafka.AIOKafkaConsumer),
    ),
    (
        "from-aiokafka",
        "Methods of the producer",
        "Arguments of AIOKafkaProducer",
        methods(aiokafka.AIOKafkaProducer),
    ),
    (
        "from-confluent-kafka",
        "Methods of the consumer",
        "Methods of the producer",
        methods(confluent_kafka.Consumer, confluent_kafka.aio.AIOConsumer),
    ),
    (
        "from-confluent-kafka",
        "Methods of the producer",
        "Properties",
        methods(confluent_kafka.Producer, confluent_kafka.aio.AIOProducer),
    ),
]


@pytest.mark.parametrize(("name", "begin", "end", "theirs"), CLIENTS)
def test_every_method_has_a_row(name: str, begin: str, end: str, theirs: set[str]) -> None:
    named = set(re.findall(r"\w+", first_cells(name, begin, end)))
    assert theirs <= named, theirs - named


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("from-")])
def test_a_page_for_users_of_another_client_says_what_a_missing_topic_is(name: str) -> None:
    rows = [line for line in page(name).splitlines() if 'missing_topics="wait"' in line]
    assert len(rows) == 1
    assert "[topics](groups.md#topics)" in rows[0]


def test_arguments_of_their_methods_exist() -> None:
    for function, names in (
        (aiokafka.AIOKafkaConsumer.getmany, {"timeout_ms", "max_records"}),
        (aiokafka.AIOKafkaConsumer.subscribe, {"pattern", "listener"}),
        (aiokafka.AIOKafkaProducer.send_and_wait, {"timestamp_ms"}),
    ):
        assert names <= set(inspect.signature(function).parameters)


def test_records_have_aiokafkas_attributes() -> None:
    from aiokafka.structs import ConsumerRecord

    from asyncgroup import Record

    theirs: Any = ConsumerRecord
    missing = {name for name in theirs.__dataclass_fields__ if not hasattr(Record, name)}
    assert missing == {"checksum", "serialized_key_size", "serialized_value_size"}
