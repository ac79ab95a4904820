"""QueueSettings and sources: each setting is written once, in all spellings; what only a consumer group has is in its source."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from asyncgroup import (
    Backoff,
    ConfigError,
    ConsumerConfig,
    DeadLetter,
    GroupSource,
    Mode,
    RetryTopic,
    WorkQueue,
)
from asyncgroup.workqueue.engine import EngineFeatures
from asyncgroup.workqueue.group_engine.source import FEATURES
from asyncgroup.workqueue.settings import QueueOptions, QueueSettings
from asyncgroup.workqueue.sources import check_features


def test_the_typed_arguments_are_the_settings() -> None:
    assert list(QueueOptions.__annotations__) == [each.name for each in fields(QueueSettings)]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"mode": "key_shared"}, {"mode": Mode.KEY_SHARED}),
        ({"mode": "Key_Shared"}, {"mode": Mode.KEY_SHARED}),
        ({"mode": "exclusive"}, {"mode": Mode.EXCLUSIVE}),
        ({"dead_letter": 5}, {"dead_letter": DeadLetter(5)}),
        ({"dead_letter": 0}, {"dead_letter": DeadLetter(0)}),
        ({"dead_letter": True}, {"dead_letter": DeadLetter()}),
        ({"dead_letter": False}, {"dead_letter": None}),
        ({"retry": True}, {"retry": RetryTopic()}),
        ({"retry": False}, {"retry": None}),
        ({"retry": "later"}, {"retry": RetryTopic("later")}),
        ({"nack_backoff": 5}, {"nack_backoff": Backoff.fixed(5)}),
        ({}, {"nack_backoff": Backoff.fixed(60.0), "mode": Mode.SHARED, "concurrency": 100}),
    ],
)
def test_spellings(given: dict[str, Any], stored: dict[str, Any]) -> None:
    settings = QueueSettings(**given)
    assert {name: getattr(settings, name) for name in stored} == stored


def test_a_queue_takes_them() -> None:
    queue = WorkQueue("localhost:9092", "billing", "orders", mode="key_shared", retry=True, dead_letter=5)
    assert queue.mode is Mode.KEY_SHARED
    assert (queue.retry_topic, queue.dead_letter_topic) == ("orders-billing-RETRY", "orders-billing-DLQ")
    assert queue.group_id == "billing"


def test_a_source_is_the_same_as_its_parts() -> None:
    config = ConsumerConfig(auto_offset_reset="earliest")
    by_source = WorkQueue(
        GroupSource(["localhost:9092"], "billing", ["orders"], config=config), mode="failover"
    )
    by_parts = WorkQueue(["localhost:9092"], "billing", ["orders"], config=config, mode="failover")
    assert repr(by_source.config) == repr(by_parts.config)
    assert by_source.group_id == by_parts.group_id


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producer_config", None),
        ("transactional_copies", True),
        ("migrate_from", "parallel-consumer"),
        ("max_waiting", 5),
    ],
)
def test_what_only_a_group_has_is_given_by_its_source(key: str, value: Any) -> None:
    options: dict[str, Any] = {key: value}
    with pytest.raises(
        ConfigError, match=rf"{key}=.* WorkQueue\(GroupSource\(servers, group, topics, {key}=…\), …\)"
    ):
        WorkQueue("localhost:9092", "billing", "orders", **options)


@pytest.mark.parametrize("key", ["config", "hooks"])
def test_what_a_source_has_is_not_given_beside_it(key: str) -> None:
    options: dict[str, Any] = {"config": ConsumerConfig(), "hooks": [object()]}
    source: Any = GroupSource("localhost:9092", "billing", "orders")
    with pytest.raises(ConfigError, match=rf"{key}=.*GroupSource"):
        WorkQueue(source, **{key: options[key]})
    with pytest.raises(ConfigError, match=r"group_id='billing' .*left out with a source"):
        WorkQueue(source, "billing")


@pytest.mark.parametrize(
    "url", ["kafka://localhost:9092", "http://localhost:9092", "pulsar+tls://localhost:6651"]
)
def test_urls(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"without a scheme for a consumer group of Kafka; pulsar:// or pulsar\+ssl://"
    ):
        WorkQueue(url, "billing", "orders")


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        WorkQueue("pulsar://ann:secret@localhost:6650", "billing", "orders")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "near"), [("concurency", "concurrency"), ("prefetch", ""), ("ack_timout", "ack_timeout")]
)
def test_unknown_settings(key: str, near: str) -> None:
    options: dict[str, Any] = {key: 1}
    with pytest.raises(ConfigError, match=rf"{key}=1.*{near}"):
        WorkQueue("localhost:9092", "billing", "orders", **options)


def test_the_signature_shows_all() -> None:
    shown = inspect.signature(WorkQueue).parameters
    names = {each.name for each in fields(QueueSettings)}
    assert names <= set(shown)
    assert all(shown[name].kind is inspect.Parameter.KEYWORD_ONLY for name in names)


class Limited(GroupSource):
    """A source whose engine has one mode and no copies."""

    __slots__ = ()

    @property
    def features(self) -> EngineFeatures:
        given = {name: getattr(FEATURES, name) for name in FEATURES.__dataclass_fields__}
        return EngineFeatures(**given | {"modes": (Mode.SHARED,), "copies": False})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "key_shared"}, r"mode=.*one of the modes of Limited: shared"),
        ({"retry": True}, r"retry=.*None: Limited has no retry topics"),
        ({"dead_letter": 3}, r"dead_letter=.*None: Limited has no dead letter topics"),
    ],
)
def test_what_an_engine_does_not_have(settings: dict[str, Any], text: str) -> None:
    source = Limited("localhost:9092", "billing", "orders")
    check_features(QueueSettings(), source)
    with pytest.raises(ConfigError, match=text):
        check_features(QueueSettings(**settings), source)
