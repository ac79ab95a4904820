"""The embedded broker beside Apache Kafka 4.3.1: one story told to both, the answers compared field by field.

The stories stand in `tests/interop/parity`: raw requests in the lowest, a middle and the highest version of each API, in
order and out of order, right and wrong. What cannot be equal (ids, ports, wording) is replaced by the table
`plain.REPLACED`; what may differ stands in `explained.EXPLAINED` with its reason. All else fails.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.testing.kafka_jars import KAFKA_VERSION
from tests.interop.parity.compare import Explained, differences, unexplained
from tests.interop.parity.explained import EXPLAINED
from tests.interop.parity.limits import KAFKA_LIMITS, OUR_LIMITS
from tests.interop.parity.sasl import KAFKA_SASL, OUR_SASL, SCRAM_USERS
from tests.interop.parity.scene import Address, Pick, Scene, Story, picked, ranges_of, shared_ranges
from tests.interop.parity.stories import LIMITED_STORIES, NODE_STORIES, SASL_STORIES, STORIES
from tests.real.support import RunningKafka

PICKS: list[Pick] = ["lowest", "middle", "highest"]

_needed: dict[tuple[str, Pick], set[Explained]] = {}
"""Which explanations the stories needed that were told."""

_asked: set[tuple[str, int]] = set()
"""The APIs and versions of their requests."""


def _require_same_release() -> None:
    external = os.environ.get("ASYNCGROUP_KAFKA", "")
    if external or os.environ.get("ASYNCGROUP_KAFKA_VERSION", KAFKA_VERSION) != KAFKA_VERSION:
        pytest.skip(f"answers are compared with those of Apache Kafka {KAFKA_VERSION}")


def _address(server: str) -> Address:
    host, _, port = server.rpartition(":")
    return host, int(port)


async def _tell(story: Story, pick: Pick, kafka: Mapping[int, Address], **options: Any) -> None:
    """Tell a story to both; `kafka` are the real one's nodes."""
    suffix = f"-{uuid.uuid4().hex[:8]}"
    racks = [f"rack-{node_id}" for node_id in kafka]
    # as `testing/kafka_properties.py` starts the real one
    async with EmbeddedCluster(
        len(kafka), racks=racks, group_min_session_timeout=0.1, default_partitions=4, **options
    ) as cluster:
        own = {node_id: (node.host, node.port) for node_id, node in cluster.nodes.items()}
        ranges = shared_ranges(await ranges_of(own[1]), await ranges_of(kafka[1]))
        async with Scene(own, ranges, pick, suffix) as ours, Scene(kafka, ranges, pick, suffix) as theirs:
            await asyncio.gather(story(ours), story(theirs))
    found = list(differences(story.__name__, ours, theirs))
    _needed[story.__name__, pick] = {line for line in EXPLAINED for each in found if line.holds_for(each)}
    _asked.update(theirs.asked)
    left = unexplained(found, EXPLAINED)
    assert not left, "\n".join(map(str, left))


@pytest.fixture(scope="module")
def narrow_kafka(kafka_at_hand: None) -> Iterator[ApacheKafka]:
    """A real node with narrow limits."""
    _require_same_release()
    with ApacheKafka(properties=KAFKA_LIMITS) as kafka:
        yield kafka


@pytest.mark.asyncio
@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_both_brokers_answer_the_same(apache_kafka: RunningKafka, story: Story, pick: Pick) -> None:
    _require_same_release()
    await _tell(story, pick, {1: _address(apache_kafka.bootstrap_servers)})


@pytest.mark.asyncio
@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("story", NODE_STORIES.values(), ids=NODE_STORIES)
async def test_both_clusters_answer_the_same(apache_kafka_3: ApacheKafka, story: Story, pick: Pick) -> None:
    _require_same_release()
    await _tell(story, pick, {node_id: _address(apache_kafka_3.address(node_id)) for node_id in (1, 2, 3)})


@pytest.mark.asyncio
@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("story", LIMITED_STORIES.values(), ids=LIMITED_STORIES)
async def test_both_answer_the_same_at_their_limits(
    narrow_kafka: ApacheKafka, story: Story, pick: Pick
) -> None:
    await _tell(story, pick, {1: _address(narrow_kafka.bootstrap_servers)}, **OUR_LIMITS)


@pytest.fixture(scope="module")
def kafka_with_sasl(kafka_at_hand: None) -> Iterator[ApacheKafka]:
    """A real node with a listener for users."""
    _require_same_release()
    with ApacheKafka(
        properties=KAFKA_SASL, listeners={"SASL": "SASL_PLAINTEXT"}, scram_users=SCRAM_USERS
    ) as kafka:
        yield kafka


@pytest.mark.asyncio
@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("story", SASL_STORIES.values(), ids=SASL_STORIES)
async def test_both_ask_for_passwords_in_the_same_way(
    kafka_with_sasl: ApacheKafka, story: Story, pick: Pick
) -> None:
    await _tell(story, pick, {1: _address(kafka_with_sasl.address(1, "SASL"))}, **OUR_SASL)


def _all_were_told() -> bool:
    return len(_needed) == len(PICKS) * sum(map(len, (STORIES, NODE_STORIES, LIMITED_STORIES, SASL_STORIES)))


def test_no_explanation_is_out_of_date() -> None:
    """Runs behind the stories; says something only if all of them were told."""
    if _all_were_told():
        used = set().union(*_needed.values())
        assert [line for line in EXPLAINED if line not in used] == []


@pytest.mark.asyncio
async def test_every_api_is_asked_in_its_lowest_a_middle_and_its_highest_version() -> None:
    """Runs behind the stories as well: what the embedded broker serves stands in some of them."""
    async with EmbeddedCluster() as cluster:
        ranges = await ranges_of((cluster.nodes[1].host, cluster.nodes[1].port))
    if _all_were_told():
        wanted = {(api, version) for api, ends in ranges.items() for version in picked(*ends).values()}
        assert wanted - _asked == set()
