"""Names of retry and dead letter topics: the presets, Pulsar's rule for several topics, and names that are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.checks import is_legal_name
from asyncgroup.errors import ConfigError
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern
from asyncgroup.workqueue.group_engine.topic_names import (
    CopyTopics,
    TopicNames,
    copy_topics,
    dead_letter_topic_name,
    other_sources,
    retry_topic_name,
)

PRESETS = ("pulsar", "kafka", "spring")
NAMES = st.sampled_from(PRESETS)
TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=100).filter(is_legal_name)


@pytest.mark.parametrize(
    ("names", "retry", "dead_letter"),
    [
        ("pulsar", "orders-billing-RETRY", "orders-billing-DLQ"),
        ("kafka", "retry.orders-billing", "dlq.orders-billing"),
        ("spring", "orders-retry", "orders-dlt"),
        (lambda topic, group_id: f"{group_id}.{topic}", "billing.orders", "billing.orders"),
    ],
)
def test_names(names: TopicNames, retry: str, dead_letter: str) -> None:
    assert retry_topic_name(names, "orders", "billing") == retry
    assert retry_topic_name(names, ["orders"], "billing") == retry
    assert dead_letter_topic_name(names, ["orders"], "billing") == dead_letter


@given(NAMES, st.lists(TOPICS, min_size=1), TOPICS)
def test_the_first_of_several_topics_in_sorted_order_names_both(
    names: TopicNames, topics: list[str], group_id: str
) -> None:
    alone = min(topics)
    for name_of in (retry_topic_name, dead_letter_topic_name):
        name = name_of(names, topics, group_id)
        assert name == name_of(names, alone, group_id) == name_of(names, topics[::-1], group_id)
        assert is_legal_name(name)
        assert alone in name


ADDED = {
    ("pulsar", retry_topic_name): "--RETRY",
    ("pulsar", dead_letter_topic_name): "--DLQ",
    ("kafka", retry_topic_name): "retry.-",
    ("kafka", dead_letter_topic_name): "dlq.-",
}
"""The characters that a preset adds to topic and group."""


@given(st.sampled_from(sorted(ADDED, key=str)), TOPICS, st.text(min_size=1, max_size=300))
def test_any_group_id_gives_a_legal_name_or_an_error_with_the_way_out(
    case: tuple[Any, Any], topic: str, group_id: str
) -> None:
    names, name_of = case
    if is_legal_name(f"{topic}{group_id}{ADDED[case]}"):
        assert is_legal_name(name_of(names, topic, group_id))
        return
    way_out = "RetryTopic" if name_of is retry_topic_name else "DeadLetter"
    with pytest.raises(ConfigError, match=rf"{way_out}\(topic=…\)"):
        name_of(names, topic, group_id)


@pytest.mark.parametrize(
    ("topic", "group_id", "message"),
    [
        ("orders", "my group", r"topic='orders-my group-RETRY'.*RetryTopic\(topic=…\)"),
        ("orders", "x" * 250, r"1 to 249 \(it has 263\) of the characters.*topic 'orders'"),
        ("orders", "zürich", "group 'zürich'"),
    ],
)
def test_a_name_that_is_no_legal_topic_is_refused(topic: str, group_id: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        retry_topic_name("pulsar", topic, group_id)


@pytest.mark.parametrize("names", [lambda *_: None, lambda *_: "a/b", lambda *_: 3, lambda *_: ""])
def test_a_function_of_names_must_return_a_legal_topic(names: Any) -> None:
    with pytest.raises(ConfigError, match=r"a legal topic.*DeadLetter"):
        dead_letter_topic_name(names, "orders", "billing")


@pytest.mark.parametrize("names", ["Pulsar", "", None, 5])
def test_unknown_presets(names: Any) -> None:
    with pytest.raises(ConfigError, match=r"names=.*pulsar, kafka, spring, or a function"):
        retry_topic_name(names, "orders", "billing")


@pytest.mark.parametrize("pattern", [re.compile("orders-.*"), SubscriptionPattern("orders-.*")])
def test_a_pattern_has_no_name(pattern: Any) -> None:
    with pytest.raises(ConfigError, match=r"pattern.*RetryTopic\(topic=…\)"):
        retry_topic_name("pulsar", pattern, "billing")
    with pytest.raises(ConfigError, match=r"pattern.*DeadLetter\(topic=…\)"):
        dead_letter_topic_name("pulsar", pattern, "billing")


# --- circles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topics", "retry", "dead_letter", "message"),
    [
        ("orders", "orders", None, "than those that the queue reads.*RetryTopic"),
        (["bills", "orders"], None, "orders", "than those that the queue reads.*DeadLetter"),
        (["orders"], "again", "again", "than the retry topic.*DeadLetter"),
        (re.compile("orders"), "orders-RETRY", "orders-DLQ", "does not match.*DeadLetter"),
        (SubscriptionPattern("orders.*"), None, "orders-DLQ", "does not match.*DeadLetter"),
    ],
)
def test_copies_never_go_round_in_circles(
    topics: Any, retry: str | None, dead_letter: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        copy_topics(topics, retry, dead_letter)


@pytest.mark.parametrize(
    ("topics", "retry", "dead_letter"),
    [
        ("orders", None, None),
        ("orders", "order", "orders-DLQ"),  # a string is one topic, not its characters or parts
        (["a", "b"], "a-RETRY", "a-DLQ"),
        (re.compile("orders"), "orders-RETRY", "dead"),  # the retry topic is read in any case
        (SubscriptionPattern("orders"), "again", "orders-DLQ"),  # of the whole name
        (SubscriptionPattern(r"\pN+"), "again", "dead"),  # RE2 only
    ],
)
def test_other_topics_are_allowed(topics: Any, retry: str | None, dead_letter: str | None) -> None:
    assert copy_topics(topics, retry, dead_letter) == CopyTopics(retry, dead_letter)


@pytest.mark.parametrize(
    ("names", "topics", "group", "others"),
    [
        ("pulsar", "orders", "billing", []),
        ("kafka", ["orders", "a"], "billing", []),
        ("pulsar", "orders-eu", "billing", ["orders"]),
        ("kafka", "orders", "eu-billing", ["orders-eu"]),
        ("pulsar", "a-b", "c-d", ["a", "a-b-c"]),
        ("pulsar", "-a", "b-", []),
        ("spring", "orders", "billing", None),
        (lambda topic, group: f"{topic}.{group}", "orders", "billing", None),
        ("pulsar", re.compile("orders"), "billing", None),
    ],
)
def test_topics_that_give_the_same_name_with_another_group(
    names: Any, topics: Any, group: str, others: list[str] | None
) -> None:
    assert other_sources(names, topics, group) == others
