"""Names of Pulsar's clients and of parallel-consumer: each error says what the name is here."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from asyncgroup import ConfigError, ConsumerConfig
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.model import Record
from asyncgroup.workqueue import Backoff, BatchPolicy, Breaker, DeadLetter, Delivery, RetryTopic, WorkQueue
from asyncgroup.workqueue.foreign_names import ARGUMENTS, DELIVERY, QUEUE
from tests.guide.pulsar_names import PYTHON_ARGUMENTS, PYTHON_METHODS


def queue(**options: Any) -> WorkQueue:
    return WorkQueue("127.0.0.1:9092", "billing", "orders", **options)


def delivery() -> Delivery:
    return Delivery(Record("orders", 0, 17, value=b"v"), 1, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"subscription_name": "billing"},
            "subscription_name='billing' is not allowed: .*; the second argument",
        ),
        ({"subscriptionName": "billing"}, "there is no such argument; the second argument, the group"),
        ({"consumer_type": 2}, r"mode=Mode\.SHARED, Mode\.KEY_SHARED, Mode\.FAILOVER or Mode\.EXCLUSIVE"),
        ({"unacked_messages_timeout_ms": 30_000}, "ack_timeout=…, in seconds"),
        ({"dead_letter_policy": None}, r"dead_letter=DeadLetter\(max_redeliveries=…, topic=…\)"),
        ({"maxConcurrency": 16}, "concurrency=…"),
        ({"max_concurrency": 16}, "concurrency=…"),
        ({"ordering": "KEY"}, r"mode=Mode\.KEY_SHARED for KEY"),
        ({"session_timeout": 10}, r"config=ConsumerConfig\(session_timeout=…\)"),
        ({"ack_timout": 10}, r"did you mean ack_timeout\?"),
        ({"durable": False}, r"on Pulsar of its source: WorkQueue\(PulsarSource\(.*durable=…\)\)"),
        (
            {"close_timeout": 60},
            r"config=ConsumerConfig\(close_timeout=…\), on Pulsar of its source: .*close_timeout=…",
        ),
        ({"colour": "red"}, "colour='red' is not allowed: there is no such argument$"),
    ],
)
def test_an_unknown_argument_of_a_queue(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        queue(**options)


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        (DeadLetter, {"max_redeliver_count": 5}, r"DeadLetter\(max_redeliveries=…\)"),
        (DeadLetter, {"dead_letter_topic": "dead"}, r"DeadLetter\(topic=…\)"),
        (RetryTopic, {"retryLetterTopic": "retry"}, r"RetryTopic\(topic=…\)"),
        (BatchPolicy, {"timeout_ms": 100}, r"BatchPolicy\(timeout=…\), in seconds"),
        (BatchPolicy, {"max_num_messages": 10}, r"BatchPolicy\(max_records=…\)"),
        (Backoff, {"minDelayMs": 1000}, r"Backoff\(initial=…\), in seconds"),
        (Breaker, {"shares": 0.5}, r"did you mean share\?"),
    ],
)
def test_an_unknown_argument_of_a_policy(policy: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policy(**options)


def test_positional_arguments_stay_those_of_python() -> None:
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        WorkQueue("127.0.0.1:9092")  # type: ignore[call-arg]
    assert list(inspect.signature(WorkQueue).parameters)[:5] == [
        "bootstrap_servers",
        "group_id",
        "topics",
        "config",
        "hooks",
    ]
    for policy in (
        Backoff(1, 2, 60),
        DeadLetter(5),
        BatchPolicy(max_records=1),
        RetryTopic("retry"),
        Breaker(),
    ):
        assert pickle.loads(pickle.dumps(policy)) == copy.copy(policy) == policy


def test_a_queue_may_have_a_subclass_with_other_arguments() -> None:
    class Named(WorkQueue):
        def __init__(self, subscription_name: str) -> None:
            super().__init__("127.0.0.1:9092", subscription_name, "orders")

    class Open(WorkQueue):
        def __init__(self, **options: Any) -> None:
            options.pop("subscription_name")
            super().__init__("127.0.0.1:9092", "billing", "orders", **options)

    assert Named(subscription_name="billing").group_id == Open(subscription_name="x").group_id == "billing"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "acknowledge",
            r"'WorkQueue' object has no attribute 'acknowledge'; here it is: await delivery\.ack\(\)",
        ),
        ("negativeAcknowledge", r"await delivery\.nack\(\)"),
        ("close", r"await queue\.aclose\(\)"),
        ("poll", r"await queue\.run\(handle\)"),
        ("colour", "'WorkQueue' object has no attribute 'colour'$"),
        ("_colour", "no attribute '_colour'$"),
    ],
)
def test_a_method_of_another_consumer(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(queue(), name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data", "'Delivery' object has no attribute 'data'; here it is: delivery.value, bytes"),
        ("message_id", r"topic, partition and offset of delivery\.record"),
        ("message_id", r"on Pulsar delivery\.record\.message_id"),
        ("acknowledge", r"await delivery\.ack\(\)"),
        ("getSingleConsumerRecord", r"delivery\.record"),
        ("get_single_consumer_record", r"delivery\.record"),
        ("colour", "'Delivery' object has no attribute 'colour'$"),
    ],
)
def test_a_method_of_another_message(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(delivery(), name)
    assert not hasattr(delivery(), name)
    assert not hasattr(Delivery, name)


def test_every_name_of_pulsars_python_client_has_a_hint() -> None:
    ours = set(inspect.signature(WorkQueue).parameters)
    missing = {
        name
        for name in PYTHON_ARGUMENTS.split()
        if name not in ours and name.replace("_", "") not in ARGUMENTS
    }
    assert not missing
    missing = {
        name
        for name in PYTHON_METHODS.split()
        if not hasattr(WorkQueue, name)
        and name not in dir(delivery())
        and name not in QUEUE
        and name not in DELIVERY
    }
    assert not missing


def test_no_hint_hides_a_name_of_ours() -> None:
    plain = {name.replace("_", "") for name in inspect.signature(WorkQueue).parameters}
    assert not plain & ARGUMENTS.keys()
    assert {"run", "receive", "batch_receive"} < set(dir(queue()))
    assert {"ack", "value", "record"} < set(dir(delivery()))
    with pytest.raises(TypeError, match="Delivery has 'headers' itself"):
        add_foreign_names(Delivery, {"headers": "a hint"})


@pytest.mark.parametrize(
    "made", [partial(WorkQueue, "localhost:9092", "g", "t"), ConsumerConfig], ids=["queue", "configuration"]
)
def test_what_an_unknown_argument_holds_is_not_printed(made: Callable[..., object]) -> None:
    with pytest.raises(ConfigError) as caught:
        made(conf={"sasl.password": "hunter2"})
    assert "hunter2" not in str(caught.value)
