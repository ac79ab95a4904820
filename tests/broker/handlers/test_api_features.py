"""The levels of features (KIP-584): as options, by UpdateFeatures, over a restart, and what they decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.metadata.features import DEFAULT_LEVELS, ClusterFeatures, FeatureChange
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from asyncgroup.wire import messages as m
from tests.broker.client import Client, connect

TV, GV, MV = "transaction.version", "group.version", "metadata.version"


@pytest.mark.parametrize(
    ("given", "change", "refused"),
    [
        ({}, (TV, 1, 2), ""),
        ({}, (TV, 1, 3), ""),
        ({}, (TV, 1, 1), "downgrade"),
        ({}, (TV, 2, 2), ""),
        ({TV: 1}, (TV, 2, 1), ""),
        ({TV: 1}, (TV, 2, 2), "to a newer version"),
        ({}, (TV, 3, 1), "0-2"),
        ({}, (TV, -1, 2), "less than 0"),
        ({}, (TV, 1, 9), "upgrade type"),
        ({}, (GV, 0, 2), ""),
        ({}, (MV, 30, 1), ""),
        ({}, (MV, 29, 2), "does not change"),
        ({}, (MV, 6, 2), "7-30"),
        ({}, ("no.such.feature", 0, 1), "not found"),
        ({}, ("share.version", 1, 1), "not found"),
    ],
)
def test_which_changes_are_allowed(given, change, refused):
    problem = ClusterFeatures(given).problem(FeatureChange(*change))
    assert (refused in problem) if refused else not problem


async def levels(client: Client) -> tuple[dict[str, int], int]:
    """Return the finalized levels and their epoch."""
    answer = await client.ask(m.ApiVersionsRequest("test", "1"), 4)
    assert all(f.min_version_level == f.max_version_level for f in answer.finalized_features)
    found = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    return found, answer.finalized_features_epoch


def update(*changes: tuple[str, int, int], validate: bool = False) -> m.UpdateFeaturesRequest:
    cls = m.UpdateFeaturesRequest
    return cls(
        10_000,
        [cls.FeatureUpdateKey(name, level, upgrade_type=kind) for name, level, kind in changes],
        validate,
    )


async def test_levels_are_changed_all_or_none_and_survive_a_restart(tmp_path: Path):
    async with (
        EmbeddedCluster(data_dir=tmp_path, transaction_version=1) as cluster,
        connect(cluster) as client,
    ):
        before, epoch = await levels(client)
        assert before == {
            "eligible.leader.replicas.version": 1,
            "group.version": 1,
            "metadata.version": 30,
            "transaction.version": 1,
        }
        for changes, validate in (
            ([(TV, 0, 2), (GV, 0, 1)], False),
            ([(TV, 0, 2)], True),
        ):
            answer = await client.ask(update(*changes, validate=validate), 2)
            assert bool(answer.error_code) is not validate
            assert await levels(client) == (before, epoch)
        answer = await client.ask(update((TV, 0, 2), (GV, 0, 2)), 2)
        assert not answer.error_code
        after, next_epoch = await levels(client)
        assert after == {name: level for name, level in before.items() if name not in (TV, GV)}
        assert next_epoch > epoch
    async with (
        EmbeddedCluster(data_dir=tmp_path, transaction_version=1) as cluster,
        connect(cluster) as client,
    ):
        assert (await levels(client))[0] == after


async def test_the_epoch_does_not_go_back_at_a_restart(tmp_path: Path):
    """Clients ignore the levels of a lower epoch, so they would miss the next change."""
    async with EmbeddedCluster(data_dir=tmp_path) as cluster, connect(cluster) as client:
        for change in ((TV, 1, 2), (TV, 0, 2), (GV, 0, 2)):
            assert not (await client.ask(update(change), 2)).error_code
        before = await levels(client)
    for change in ((TV, 1, 1), (TV, 2, 1)):
        async with EmbeddedCluster(data_dir=tmp_path) as cluster, connect(cluster) as client:
            assert await levels(client) == before
            assert not (await client.ask(update(change), 2)).error_code
            after = await levels(client)
            assert after[1] > before[1]
            before = after


def test_levels_stored_without_an_epoch_are_restored():
    features = ClusterFeatures()
    features.restore({TV: 1}, None)
    assert (features.level(TV), features.epoch) == (1, 2)


async def test_without_group_version_the_consumer_protocol_is_refused():
    request = m.ConsumerGroupHeartbeatRequest("g", "m", 0, None, None, 1000, ["t"], None, None, [])
    described = m.ConsumerGroupDescribeRequest(["g"])
    async with EmbeddedCluster(group_version=0, topics="t") as cluster, connect(cluster) as client:
        assert (await client.ask(request, 1)).error_code == ErrorCode.UNSUPPORTED_VERSION
        (group,) = (await client.ask(described, 1)).groups
        assert group.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert not (await client.ask(update((GV, 1, 1)), 2)).error_code
        assert (await client.ask(request, 1)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "options", [{"transaction_version": 3}, {"group_version": -1}, {"transaction_version": True}]
)
def test_levels_that_kafka_does_not_have_are_refused(options):
    with pytest.raises(ConfigError, match=r"a level of (transaction|group)\.version from 0 to"):
        EmbeddedCluster(**options)


def test_the_default_levels_are_those_of_a_new_cluster():
    assert ClusterFeatures().finalized == {name: level for name, level in DEFAULT_LEVELS.items() if level}
