"""Commands and Kafka's own tools with names that do not exist and values that Kafka does not know: both fail."""

from __future__ import annotations

import pytest

from tests.real.beside_kafka import Beside, beside, beside_39, unique
from tests.real.support import NEEDS_KAFKA_4, require_newest_release

__all__ = ["beside", "beside_39"]

pytestmark = pytest.mark.full


@NEEDS_KAFKA_4
async def test_a_group_that_does_not_exist(beside: Beside) -> None:
    missing = unique("missing")
    for ours, theirs in (
        (("groups", "describe", missing), "--state"),
        (("groups", "describe", missing, "--members"), "--members"),
        (("groups", "lag", missing), "--offsets"),
        (("health", missing), "--offsets"),
    ):
        await beside.both_refuse(
            ours,
            ("kafka-consumer-groups", "--describe", "--group", missing, theirs),
            error="GROUP_ID_NOT_FOUND",
            words=f"Group {missing} not found",
        )


async def test_a_topic_that_does_not_exist(beside: Beside) -> None:
    missing = unique("missing")
    topics = ("--entity-type", "topics", "--entity-name", missing)
    for ours, theirs, their_words in (
        (
            ("topics", "describe", missing),
            ("kafka-topics", "--describe", "--topic", missing),
            f"Topic '{missing}' does not exist as expected",
        ),
        (
            ("offsets", "latest", missing),
            ("kafka-get-offsets", "--topic", missing),
            "Could not match any topic-partitions",
        ),
        (
            ("configs", "describe", "topic", missing),
            ("kafka-configs", "--describe", *topics),
            f"The topic '{missing}' doesn't exist",
        ),
        (
            ("cluster", "log-dirs", missing),
            ("kafka-log-dirs", "--describe", "--topic-list", missing),
            '"partitions":[]',
        ),
    ):
        await beside.both_refuse(
            ours, theirs, error="UNKNOWN_TOPIC_OR_PARTITION", words=missing, their_words=their_words
        )
    reset = ("--to-latest", "--topic", missing)
    await beside.both_refuse(
        ("groups", "reset", missing, *reset),
        ("kafka-consumer-groups", "--reset-offsets", "--group", missing, *reset, "--dry-run"),
        error="it does not exist",
        words=missing,
        their_words="UnknownTopicOrPartitionException",
    )


async def test_a_pattern_of_transactional_ids(beside: Beside, beside_39: Beside) -> None:
    require_newest_release("patterns of transactional ids")
    await beside.both_refuse(
        ("transactions", "list", "--pattern", "("),
        ("kafka-transactions", "list", "--transactional-id-pattern", "("),
        error="INVALID_REGULAR_EXPRESSION",
        words="the rows of node 1 are missing",
        their_words="INVALID_REGULAR_EXPRESSION",
    )
    await beside_39.both_refuse(
        ("transactions", "list", "--pattern", "a"),
        ("kafka-transactions", "list", "--transactional-id-pattern", "a"),
        error="it needs a newer Kafka",
        words="the rows of node 1 are missing",
        their_words="Failed to list transactions",
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (
            ("groups", "list", "--state", "Bogus"),
            ("kafka-consumer-groups", "--list", "--state", "Bogus"),
            "Invalid state list 'Bogus'",
        ),
        (
            ("groups", "list", "--type", "bogus"),
            ("kafka-consumer-groups", "--list", "--type", "bogus"),
            "Invalid types list 'bogus'",
        ),
        (
            ("groups", "reset", "g", "--to-datetime", "yesterday", "--all-topics"),
            (
                *("kafka-consumer-groups", "--reset-offsets", "--group", "g", "--all-topics"),
                *("--to-datetime", "yesterday", "--dry-run"),
            ),
            "Error parsing timestamp",
        ),
        (
            ("topics", "create", "no topic"),
            ("kafka-topics", "--create", "--topic", "no topic"),
            "no topic",
        ),
        (
            ("cluster", "set-features", "transaction.version"),
            ("kafka-features", "upgrade", "--feature", "transaction.version"),
            "Can't parse feature=level string transaction.version: equals sign not found",
        ),
    ],
)
async def test_wrong_arguments(
    beside: Beside, ours: tuple[str, ...], theirs: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        await beside.ours(*ours)
    assert caught.value.code == 2
    output = await beside.tool(*theirs)
    assert words in output.text, output.text
