"""Names of Pulsar's other clients: each error says what a method or a setting is here."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar import PulsarConsumerConfig, PulsarMessage, PulsarTopicConsumer
from asyncgroup.pulsar.consumer.consumer_properties import CONSUMER_NAMES
from asyncgroup.pulsar.consumer.foreign_names import PULSAR_CONSUMER
from tests.guide.pulsar_names import PYTHON_ARGUMENTS, PYTHON_METHODS
from tests.pulsar.consumer.support import single

POLICIES = {
    *(
        "max_redeliver_count",
        "dead_letter_topic",
        "initial_subscription_name",
        "max_num_message",
        "max_num_bytes",
    ),
    *("timeout_ms", "key_shared_mode", "allow_out_of_order_delivery", "sticky_ranges"),
}
"""Arguments of policies, which are no settings of a consumer."""


def refused(name: str) -> str:
    with pytest.raises(ConfigError) as error:
        PulsarConsumerConfig(**{name: 1})  # type: ignore[arg-type]  # any name
    return str(error.value)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("negative_ack_redelivery_delay_ms", "there is no such key; did you mean nack_delay, in seconds?"),
        ("acknowledgementsGroupTimeMicros", "did you mean ack_group_time, in seconds?"),
        ("receiverQueueSize", "did you mean receiver_queue_size?"),
        ("dead_letter_policy", "a work queue has it: dead_letter and retry"),
        ("consumer_type", "it is an argument of PulsarClient.subscribe: type"),
        ("nack_dellay", "did you mean nack_delay?"),
        ("nonsense", "there is no such key"),
    ],
)
def test_settings_of_other_clients_are_errors_with_a_hint(key: str, hint: str) -> None:
    assert refused(key).endswith(hint)


def test_every_setting_of_pulsars_clients_has_a_hint() -> None:
    ours = set(PulsarConsumerConfig.__dataclass_fields__)
    java = [
        name
        for name in CONSUMER_NAMES.all_names
        if CONSUMER_NAMES.keys.get(name) or name in CONSUMER_NAMES.arguments
    ]
    for name in {*PYTHON_ARGUMENTS.split(), *java} - POLICIES - ours:
        assert refused(name).partition("there is no such key")[2], name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("acknowledge", "here it is: consumer.ack(message)"),
        ("negativeAcknowledge", "here it is: consumer.nack(message)"),
        ("getLastMessageId", "here it is: await consumer.last_message_ids()"),
        ("close", "here it is: await consumer.aclose()"),
        ("colour", "has no attribute 'colour'"),
    ],
)
def test_methods_of_other_consumers(name: str, words: str) -> None:
    consumer = PulsarTopicConsumer.__new__(PulsarTopicConsumer)
    with pytest.raises(AttributeError) as error:
        getattr(consumer, name)
    assert words in str(error.value)
    assert name not in dir(consumer)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data", "here it is: message.value"),
        ("getKey", "here it is: message.key"),
        ("publish_timestamp", "here it is: message.timestamp, in ms"),
        ("colour", "PulsarMessage has no attribute 'colour'"),
    ],
)
def test_methods_of_other_messages(name: str, words: str) -> None:
    message: Any = PulsarMessage("t", single(1), 0)
    with pytest.raises(AttributeError) as error:
        getattr(message, name)
    assert str(error.value).endswith(words)


def test_every_method_of_pythons_clients_is_known() -> None:
    """Ours, or with a hint."""
    message: Any = PulsarMessage("t", single(1), 0)
    for name in PYTHON_METHODS.split():
        if name in PULSAR_CONSUMER or hasattr(PulsarTopicConsumer, name) or hasattr(message, name):
            continue
        with pytest.raises(AttributeError, match="here it is: "):
            getattr(message, name)
