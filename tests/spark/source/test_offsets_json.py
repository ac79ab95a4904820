"""Parsing and writing Spark's JSON of offsets; invalid JSON."""

from __future__ import annotations

import json
import random

import pytest

from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.options.offsets_json import dump, parse, parse_limits, parse_partitions
from tests.spark.source.reading_options import dumps

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_parse():
    assert parse('{"b":{"0":-2},"a":{"1":-1,"0":23}}') == {A0: 23, A1: -1, B0: -2}
    assert list(parse('{"b":{"0":1},"a":{"10":1,"9":1}}')) == [("a", 9), ("a", 10), ("b", 0)]
    assert parse({"a": {"0": 5}}) == {A0: 5}
    assert parse('{"a":{"0":9223372036854775807}}') == {A0: 2**63 - 1}
    assert parse("{}") == parse('{"a":{}}') == {}


def test_dump():
    assert dump({B0: 1, A1: 2, A0: 3}) == {"a": {"0": 3, "1": 2}, "b": {"0": 1}}
    assert dumps({B0: 1, A1: 2, A0: 3}) == '{"a":{"0":3,"1":2},"b":{"0":1}}'
    assert dumps({}) == "{}"


def test_the_order_equals_that_of_sparks_maps():
    """Expected texts were produced with Spark 4.2.0, whose maps order topics and partitions by the slots of their hashes."""
    names = [f"t{number}" for number in range(12)]
    printed = json.loads(dumps({TopicPartition(name, 0): 1 for name in names}))
    assert list(printed) == ["t4", "t5", "t6", "t7", "t8", "t9", "t10", "t11", "t0", "t1", "t2", "t3"]
    assert (
        dumps({TopicPartition("t", number): 1 for number in (0, 1, 16, 17)})
        == '{"t":{"0":1,"16":1,"1":1,"17":1}}'
    )


@pytest.mark.parametrize(
    ("numbers", "printed"),
    [
        ([*range(10), 16], [0, 16, *range(1, 10)]),  # 16 slots hold eleven keys
        ([*range(11), 16], [*range(11), 16]),  # and 32 hold twelve
        ([2**31 - 1, 5, 32768], [32768, 2**31 - 1, 5]),
    ],
)
def test_the_order_of_partitions(numbers, printed):
    text = dumps({TopicPartition("t", number): 1 for number in numbers})
    assert list(json.loads(text)["t"]) == [str(number) for number in printed]


SIXTEEN = [
    "alerts", "invoices", "delays", "payments", "weather", "clicks",
    "orders", "carriers", "flights", "zones", "airports",
]  # fmt: skip
THIRTY_TWO = [
    "payments", "carriers", "zones", "airports", "alerts", "invoices",
    "delays", "weather", "clicks", "orders", "flights",
]  # fmt: skip
"""The order of topics in tables by number of slots."""


@pytest.mark.parametrize(("last", "printed"), [(1, SIXTEEN), (2, THIRTY_TWO)])
def test_the_order_of_topics(last, printed):
    """The table with eleven topics doubles when the last topic is put again for its second partition."""
    offsets = {TopicPartition(topic, 0): 1 for topic in SIXTEEN} | {TopicPartition("zones", last - 1): 1}
    assert list(json.loads(dumps(offsets))) == printed


def test_round_trip_of_any_offsets():
    rng = random.Random(11)
    for _ in range(60):
        topics = [
            "".join(rng.choices("abcXYZ019._-", k=rng.randint(3, 9))) for _ in range(rng.randint(0, 30))
        ]
        offsets = {
            TopicPartition(topic, rng.randint(0, 2**31 - 1)): rng.randint(-2, 2**63 - 1)
            for topic in topics
            for _ in range(rng.randint(1, 20))
        }
        shuffled = dict(rng.sample(list(offsets.items()), len(offsets)))
        assert parse(dumps(shuffled)) == parse(json.dumps(dump(offsets))) == offsets
        assert dumps(shuffled) == dumps(offsets)
        assert list(parse(dumps(offsets))) == sorted(offsets)


def test_offsets_of_whole_topics():
    text = '{"c":"LATEST","b":{"0":5},"a":"earliest"}'
    assert parse_limits(text) == ({B0: 5}, {"a": -2, "c": -1})
    for wrong in (text, '{"a":"5"}'):
        with pytest.raises(ValueError, match="must be an object"):
            parse(wrong)  # not allowed in a checkpoint


def test_partitions():
    assert parse_partitions('{"b":[0],"a":[1,0,1]}') == (A0, A1, B0)
    assert parse_partitions("{}") == ()


HARMFUL = [
    "", " ", "a", "null", "5", '"a"', "[]", "{", '{"a"}', "{'a':{'0':1}}", '{"a":{"0":1}} x', '{"a":{"0":1},}',
    '{"a":null}', '{"a":5}', '{"a":[0]}', '{"a":"earliest"}',
    '{"a":{"x":1}}', '{"a":{"":1}}', '{"a":{"-1":1}}', '{"a":{" 0":1}}', '{"a":{"00":1}}', '{"a":{"+1":1}}',
    '{"a":{"1.0":1}}', '{"a":{"٣":1}}', '{"a":{"2147483648":1}}', '{"a":{"' + "9" * 5000 + '":1}}',
    '{"a":{"0":"1"}}', '{"a":{"0":1.0}}', '{"a":{"0":1e3}}', '{"a":{"0":true}}', '{"a":{"0":null}}',
    '{"a":{"0":[1]}}', '{"a":{"0":NaN}}', '{"a":{"0":Infinity}}', '{"a":{"0":9223372036854775808}}',
    '{"a":{"0":' + "9" * 5000 + "}}",
    '{"a":{"0":1,"0":1}}', '{"a":{"0":1},"a":{"1":1}}',
    '{"":{"0":1}}', '{"a b":{"0":1}}', '{"..":{"0":1}}', '{"' + "a" * 250 + '":{"0":1}}', '{"\\u0000":{"0":1}}',
    '{"\\ud800":{"0":1}}',
    "[" * 100_000, '{"a":' * 100_000, '{"a":{"0":' + "[" * 5000 + "]" * 5000 + "}}",
]  # fmt: skip


@pytest.mark.parametrize("text", HARMFUL, ids=lambda text: text[:30])
def test_invalid_json_of_offsets(text):
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) < 600
    str(caught.value).encode()


@pytest.mark.parametrize(
    "text", ["", "[0]", '{"a":{"0":1}}', '{"a":0}', '{"a":[0.5]}', '{"a":["0"]}', '{"a":[true]}', '{"a":[-1]}', '{"a":[2147483648]}', '{"a":[null]}']
)  # fmt: skip
def test_invalid_json_of_partitions(text):
    with pytest.raises(ValueError):
        parse_partitions(text)
