"""Admin beside kafka-python's admin client on three nodes of Kafka 4.3 and 3.9: elections, reassignments, features, cluster and quorum."""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from asyncgroup import TopicPartition
from asyncgroup.admin import Admin, FeatureUpdate, NewTopic
from asyncgroup.error_codes import error_name
from asyncgroup.errors import BrokerError
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.apache_kafka import OLD_KAFKA_VERSION
from tests.real.test_admin_brokers import (
    by_kafka_python,
    compare_cluster,
    compare_quorum,
    raised_by_kafka_python,
    unique,
)
from tests.real.test_admin_configs_beside_others import named
from tests.real.test_admin_topics_beside_others import outcome

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def kafka_39_3(kafka_39: ApacheKafka) -> Iterator[ApacheKafka]:
    """Three nodes of Kafka 3.9, which is at hand if `kafka_39` runs."""
    with ApacheKafka(3, version=OLD_KAFKA_VERSION) as kafka:
        yield kafka


def names(results: Mapping[TopicPartition, Any]) -> dict[int, str]:
    """Return "NONE" or the name of the error of each partition."""
    return {
        tp.partition: found.name if isinstance(found, BrokerError) else "NONE"
        for tp, found in results.items()
    }


def their_names(results: Mapping[Any, Any]) -> dict[int, str]:
    return {
        tp.partition: "NONE" if error is None else error_name(error.errno) for tp, error in results.items()
    }


class Moves:
    """A topic of each client, whose partitions have replicas at node 1 and another node."""

    def __init__(self, kafka: ApacheKafka, admin: Admin) -> None:
        self.kafka = kafka
        self.admin = admin
        self.ours, self.theirs = unique(), unique()

    def at(self, topic: str, wanted: Mapping[int, Any]) -> dict[TopicPartition, Any]:
        return {TopicPartition(topic, number): value for number, value in wanted.items()}

    async def reassign(self, wanted: Mapping[int, list[int] | None]) -> dict[int, str]:
        """Reassign the partitions of both topics, each by its client; return the errors, which are the same."""
        found = names(await self.admin.replicas.alter_reassignments(self.at(self.ours, wanted)))
        move = operator.methodcaller("alter_partition_reassignments", self.at(self.theirs, wanted))
        assert their_names(await by_kafka_python(self.kafka.bootstrap_servers, move)) == found
        return found

    async def elect(self, kind: Any, partitions: list[int]) -> dict[int, str]:
        """Elect leaders of the partitions of both topics; return what became of each, which is the same."""
        elected = await self.admin.replicas.elect_leaders(kind, [(self.ours, each) for each in partitions])
        number = ["preferred", "unclean"].index(kind)
        ask = operator.methodcaller("elect_leaders", number, {self.theirs: partitions}, raise_errors=False)
        response = await by_kafka_python(self.kafka.bootstrap_servers, ask)
        found = {
            each.partition_id: error_name(each.error_code)
            for topic in response.replica_election_results
            for each in topic.partition_result
        }
        assert found == {
            tp.partition: "ELECTION_NOT_NEEDED" if each is False else names({tp: each})[tp.partition]
            for tp, each in elected.items()
        }
        return found

    async def in_progress(self) -> dict[int, Any]:
        """Return the reassignments in progress of our topic, which are those of their topic."""
        listed = await self.admin.replicas.list_reassignments()
        theirs = await by_kafka_python(
            self.kafka.bootstrap_servers, operator.methodcaller("list_partition_reassignments")
        )
        assert {tp: (each.replicas, each.adding, each.removing) for tp, each in listed.items()} == {
            TopicPartition(*tp): tuple(
                tuple(each[key]) for key in ("replicas", "adding_replicas", "removing_replicas")
            )
            for tp, each in theirs.items()
        }
        found = {
            topic: {tp.partition: each for tp, each in listed.items() if tp.topic == topic}
            for topic in (self.ours, self.theirs)
        }
        assert found[self.ours] == found[self.theirs]
        return found[self.ours]


async def compare_replicas(kafka: ApacheKafka) -> None:
    async with Admin(kafka.bootstrap_servers) as admin:
        controller = (await admin.brokers.quorum()).leader
        assert controller is not None
        stopped, other = sorted({1, 2, 3} - {controller})
        moves = Moves(kafka, admin)
        new = NewTopic(assignments=[[controller, other]] * 3)
        (await admin.create_topics(dict.fromkeys([moves.ours, moves.theirs], new))).raise_first()
        assert await moves.reassign({0: [other, controller], 1: [controller, 99], 9: [controller]}) == {
            0: "NONE",
            1: "INVALID_REPLICA_ASSIGNMENT",
            9: "UNKNOWN_TOPIC_OR_PARTITION",
        }
        # only the order has changed, and the leader is the same as before
        assert await moves.in_progress() == {}
        assert await moves.elect("preferred", [0, 1, 9]) == {
            0: "NONE",
            1: "ELECTION_NOT_NEEDED",
            9: "UNKNOWN_TOPIC_OR_PARTITION",
        }
        assert await moves.elect("unclean", [0, 9]) == {
            0: "ELECTION_NOT_NEEDED",
            9: "UNKNOWN_TOPIC_OR_PARTITION",
        }

        await asyncio.to_thread(kafka.stop_node, stopped)
        try:
            assert await moves.reassign({2: [controller, stopped]}) == {2: "NONE"}
            progress = await moves.in_progress()
            assert {number: (each.adding, each.removing) for number, each in progress.items()} == {
                2: ((stopped,), (other,))
            }
            assert await moves.reassign({2: None, 1: None}) == {2: "NONE", 1: "NO_REASSIGNMENT_IN_PROGRESS"}
            assert await moves.in_progress() == {}
        finally:
            await asyncio.to_thread(kafka.start_node, stopped)
        cancelled = await admin.replicas.cancel_reassignments([(moves.ours, 2)])
        assert names(cancelled) == {2: "NO_REASSIGNMENT_IN_PROGRESS"}


async def test_replicas(apache_kafka_3: ApacheKafka) -> None:
    await compare_replicas(apache_kafka_3)


async def test_replicas_of_kafka_3_9(kafka_39_3: ApacheKafka) -> None:
    await compare_replicas(kafka_39_3)


async def test_the_cluster_of_kafka_3_9(kafka_39_3: ApacheKafka) -> None:
    await compare_cluster(kafka_39_3, include_fenced=False)


async def test_the_quorum_of_kafka_3_9(kafka_39_3: ApacheKafka) -> None:
    await compare_quorum(kafka_39_3)


# --- features -------------------------------------------------------------------------------------------------------------

TYPES = ("UPGRADE", "SAFE_DOWNGRADE", "UNSAFE_DOWNGRADE")
WRONG: list[dict[str, FeatureUpdate]] = [
    {"metadata.version": FeatureUpdate(10_000)},
    {"metadata.version": FeatureUpdate(1, "SAFE_DOWNGRADE")},
    {"metadata.version": FeatureUpdate(8)},
    {"nonsense": FeatureUpdate(1)},
]


async def compare_features(kafka: ApacheKafka) -> None:
    """Each update is refused with the same text; with `validate_only` and without."""
    async with Admin(kafka.bootstrap_servers) as admin:
        before = await admin.brokers.features()
        for wanted in WRONG:
            for validate_only in (True, False):
                updated = await admin.brokers.update_features(wanted, validate_only=validate_only)
                theirs = {
                    name: (TYPES.index(each.upgrade_type) + 1, each.level) for name, each in wanted.items()
                }
                ask = operator.methodcaller("update_features", theirs, validate_only=validate_only)
                found = await feature_outcomes(kafka.bootstrap_servers, ask)
                ours = {name: outcome(each) for name, each in updated.items()}
                assert list(ours.values()) == found
                assert "NONE" not in ours.values()
        assert (await admin.brokers.features()).finalized == before.finalized


async def feature_outcomes(servers: str, ask: Callable[[Any], Any]) -> list[str]:
    """Return the result of each feature, or of the whole request, of which kafka-python raises the error (Kafka 4.0)."""
    raised, text = await raised_by_kafka_python(servers, ask)
    if raised != "NONE":
        ((_, message),) = re.findall(r"""error_message=(['"])(.*)\1\)'\.$""", text)
        return [f"{raised}: {message}"]
    return [named(text) for text in (await by_kafka_python(servers, ask)).values()]


async def test_features(apache_kafka_3: ApacheKafka) -> None:
    await compare_features(apache_kafka_3)


async def test_features_of_kafka_3_9(kafka_39_3: ApacheKafka) -> None:
    await compare_features(kafka_39_3)
