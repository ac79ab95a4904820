"""Compare the embedded broker with Apache Kafka 4.3.1: the same requests must get equal responses.

The stories are in `tests/interop/parity`: raw requests in the highest, and in the full profile the lowest and a middle
version of each API, valid and invalid, in order and out of order. Values that cannot be equal (ids, ports, wording) are
replaced by `plain.REPLACED`. Intended differences are listed in `explained.EXPLAINED` with their reasons; any
other difference fails.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.interop.parity.compare import Explained, differences, unexplained
from tests.interop.parity.explained import EXPLAINED
from tests.interop.parity.limits import KAFKA_LIMITS, OUR_LIMITS
from tests.interop.parity.mixed_groups import groups_that_may_not_change
from tests.interop.parity.sasl import KAFKA_SASL, OUR_SASL, SCRAM_USERS
from tests.interop.parity.scene import Address, Pick, Scene, Story, picked, ranges_of, shared_ranges
from tests.interop.parity.stories import LIMITED_STORIES, NODE_STORIES, SASL_STORIES, STORIES
from tests.profiles import long_family, thinned
from tests.real.support import RunningKafka, require_newest_release

# in one process: the last tests check what all stories have needed
pytestmark = [pytest.mark.java, pytest.mark.xdist_group("kafka_3")]

PICKS: list[Pick] = thinned(["highest", "lowest", "middle"])

_needed: dict[tuple[str, Pick], set[Explained]] = {}
"""The explanations that were needed, by story and version."""

_asked: set[tuple[str, int]] = set()
"""The APIs and versions of all requests so far."""


def _address(server: str) -> Address:
    host, _, port = server.rpartition(":")
    return host, int(port)


async def _compare(story: Story, pick: Pick, kafka: Mapping[int, Address], **options: Any) -> None:
    """Run a story on both brokers and compare the responses; `kafka` are the nodes of the real cluster."""
    suffix = f"-{uuid.uuid4().hex[:8]}"
    racks = [f"rack-{node_id}" for node_id in kafka]
    # The same options as those of the real cluster, see `testing/apache_kafka/properties.py`.
    options |= {"group_min_session_timeout": 0.1, "default_partitions": 4}
    options["settings"] = {"log.index.size.max.bytes": "262144"}
    async with EmbeddedCluster(len(kafka), racks=racks, **options) as cluster:
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
    """Run a real node with narrow limits."""
    require_newest_release("a comparison with the embedded broker")
    with ApacheKafka(properties=KAFKA_LIMITS) as kafka:
        yield kafka


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_both_brokers_answer_the_same(apache_kafka: RunningKafka, story: Story, pick: Pick) -> None:
    require_newest_release("a comparison with the embedded broker")
    await _compare(story, pick, {1: _address(apache_kafka.bootstrap_servers)})


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("story", NODE_STORIES.values(), ids=NODE_STORIES)
async def test_both_clusters_answer_the_same(apache_kafka_3: ApacheKafka, story: Story, pick: Pick) -> None:
    require_newest_release("a comparison with the embedded broker")
    await _compare(story, pick, {node_id: _address(apache_kafka_3.address(node_id)) for node_id in (1, 2, 3)})


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("story", LIMITED_STORIES.values(), ids=LIMITED_STORIES)
async def test_both_answer_the_same_at_their_limits(
    narrow_kafka: ApacheKafka, story: Story, pick: Pick
) -> None:
    await _compare(story, pick, {1: _address(narrow_kafka.bootstrap_servers)}, **OUR_LIMITS)


@pytest.mark.full
@pytest.mark.parametrize("policy", long_family(["upgrade", "disabled", "downgrade"]))
async def test_both_answer_the_same_under_a_migration_policy(kafka_at_hand: None, policy: str) -> None:
    require_newest_release("a comparison with the embedded broker")
    # each change is assigned at once: with an interval the generation depends on how fast the requests follow
    properties = {"group.consumer.migration.policy": policy, "group.consumer.assignment.interval.ms": "0"}
    with ApacheKafka(properties=properties) as kafka:
        await _compare(
            groups_that_may_not_change,
            "highest",
            {1: _address(kafka.bootstrap_servers)},
            group_consumer_migration_policy=policy,
            group_consumer_assignment_interval=0.0,
        )


@pytest.fixture(scope="module")
def kafka_with_sasl(kafka_at_hand: None) -> Iterator[ApacheKafka]:
    """Run a real node with a SASL listener."""
    require_newest_release("a comparison with the embedded broker")
    with ApacheKafka(
        properties=KAFKA_SASL, listeners={"SASL": "SASL_PLAINTEXT"}, scram_users=SCRAM_USERS
    ) as kafka:
        yield kafka


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("story", SASL_STORIES.values(), ids=SASL_STORIES)
async def test_both_answer_the_same_to_sasl(kafka_with_sasl: ApacheKafka, story: Story, pick: Pick) -> None:
    await _compare(story, pick, {1: _address(kafka_with_sasl.address(1, "SASL"))}, **OUR_SASL)


@pytest.fixture
def all_have_run(request: pytest.FixtureRequest) -> None:
    """Skip the test if some stories were not selected; fail it if a selected one has not run to its end here."""
    require_newest_release("a comparison with the embedded broker")
    families = (STORIES, NODE_STORIES, LIMITED_STORIES, SASL_STORIES)
    every = {(story.__name__, pick) for family in families for story in family.values() for pick in PICKS}
    selected = sum(
        item.path == request.path and "story" in getattr(item, "fixturenames", ())
        for item in request.session.items
    )
    if selected < len(every):
        pytest.skip(f"only {selected} of {len(every)} stories were selected")
    missing = sorted(every - _needed.keys())
    assert missing == [], "these stories did not run to their end, or not before this test in its process"


@pytest.mark.usefixtures("all_have_run")
def test_no_explanation_is_out_of_date() -> None:
    """Must run after the stories."""
    used = set().union(*_needed.values())
    assert [line for line in EXPLAINED if line not in used] == []


@pytest.mark.usefixtures("all_have_run")
async def test_every_api_is_requested_in_the_versions_of_all_picks() -> None:
    """Must run after the stories: every version that the embedded broker serves is in one of them."""
    async with EmbeddedCluster() as cluster:
        ranges = await ranges_of((cluster.nodes[1].host, cluster.nodes[1].port))
    wanted = {(api, picked(*ends)[pick]) for api, ends in ranges.items() for pick in PICKS}
    assert wanted - _asked == set()
