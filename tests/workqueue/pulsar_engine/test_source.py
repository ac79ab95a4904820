"""PulsarSource: what it accepts, which topics a queue on it has, and what a URL of Pulsar makes of a WorkQueue."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup import WorkQueue
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.workqueue.delivery import Delivery
from asyncgroup.workqueue.policies import DeadLetter, RetryTopic
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.pulsar.consumer.support import single

URL = "pulsar://localhost:6650"


def test_a_url_of_pulsar_is_a_source_of_it() -> None:
    queue = WorkQueue(URL, "billing", "orders", mode="key_shared")
    assert (queue.group_id, queue.mode.value, queue.config) == ("billing", "key_shared", None)
    assert (queue.retry_topic, queue.dead_letter_topic) == (None, None)
    WorkQueue("pulsar+ssl://a:6651,b:6651", "billing", ["orders", "a/b/c"], config=PulsarConfig())


def test_topics_of_copies_have_javas_names() -> None:
    queue = WorkQueue(URL, "billing", ["t/n/orders", "bills"], retry=True, dead_letter=3)
    assert queue.retry_topic == "persistent://public/default/bills-billing-RETRY"
    assert queue.dead_letter_topic == "persistent://public/default/bills-billing-DLQ"
    queue = WorkQueue(
        URL, "b", "orders", retry=RetryTopic("later"), dead_letter=DeadLetter(3, topic="t/n/dead")
    )
    assert queue.retry_topic == "persistent://public/default/later"
    assert queue.dead_letter_topic == "persistent://t/n/dead"
    queue = WorkQueue(URL, "b", "t/n/orders", dead_letter=DeadLetter(3, names="kafka"))
    assert queue.dead_letter_topic == "persistent://t/n/dlq.orders-b"
    queue = WorkQueue(
        URL, "b", "orders", dead_letter=DeadLetter(3, names=lambda topic, group: f"t/n/{group}")
    )
    assert queue.dead_letter_topic == "persistent://t/n/b"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("kafka://localhost", "b", "t"), "service_url='kafka://localhost'"),
        ((URL, "", "t"), "subscription=''"),
        ((URL, 5, "t"), "subscription=5"),
        ((URL, "b", ""), "topic ''"),
        ((URL, "b", []), r"topics=\[\]"),
        ((URL, "b", b"t"), "topics=b't'"),
        ((URL, "b", {"t": 1}), "topics="),
        ((URL, "b", ["t", 5]), r"topics=\['t', 5\]"),
        ((URL, "b", ["t", "persistent://public/default/t"]), "each topic once"),
        ((URL, "b", "http://t"), "topic='http://t'"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PulsarSource(*arguments)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"config": 5}, "config='int'"),
        ({"durable": "yes"}, "durable='yes'"),
        ({"index_acks": 1}, "index_acks=1"),
        ({"dead_letter_subscription": ""}, "dead_letter_subscription=''"),
        ({"close_timeout": -1}, "close_timeout=-1"),
        ({"hooks": 5}, "hooks"),
    ],
)
def test_wrong_settings(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PulsarSource(URL, "billing", "orders", **keys)


def test_a_client_has_its_own_configuration() -> None:
    client = PulsarClient(URL)
    assert PulsarSource(client, "billing", "orders").service_url is client
    with pytest.raises(ConfigError, match="None with a PulsarClient"):
        PulsarSource(client, "billing", "orders", config=PulsarConfig())


def test_key_ranges_are_of_key_shared() -> None:
    source = PulsarSource(URL, "billing", "orders", key_ranges=[(0, 100)])
    WorkQueue(source, mode="key_shared")
    with pytest.raises(ConfigError, match=r"only Mode\.KEY_SHARED has them"):
        WorkQueue(source)


def test_copies_go_to_other_topics() -> None:
    with pytest.raises(ConfigError, match="another topic than those that the queue reads"):
        WorkQueue(URL, "billing", "orders", dead_letter=DeadLetter(3, topic="public/default/orders"))


def test_a_delivery_shows_the_id_of_its_message() -> None:
    """With which `dlq show` and Pulsar's tools find it; the offset is a number of this process."""
    message = PulsarMessage("persistent://a/b/orders", single(4), 0)
    delivery = Delivery(message, 1, None, None, None)  # type: ignore[arg-type]
    assert repr(delivery) == f"<Delivery persistent://a/b/orders@{message.message_id}, attempt 1: acquired>"
