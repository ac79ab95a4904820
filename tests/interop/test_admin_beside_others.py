"""Admin beside other admin clients on the embedded cluster: the comparisons that tests/real makes on Apache Kafka.

The embedded controller and brokers refuse with Kafka's own texts, so that what is compared there is compared here as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.real import (
    test_admin_configs_beside_others as configs,
    test_admin_groups as groups,
    test_admin_lag as lag,
    test_admin_members as members,
    test_admin_topics_beside_others as topics,
)

COMPARISONS: dict[str, Callable[[str], Awaitable[None]]] = {
    "topics": topics.compare_topics,
    "records": topics.compare_records,
    "configurations of topics": configs.compare_topics,
    "configurations of brokers": configs.compare_brokers,
    "configurations of groups": configs.compare_groups,
    "offsets": lag.compare_offsets,
    "classic groups": partial(groups.life_of_a_group, protocol="classic"),
    "consumer groups": partial(groups.life_of_a_group, protocol="consumer"),
    "removed members": members.compare_removals,
}


@pytest.mark.parametrize(
    "name",
    [each if each == "topics" else pytest.param(each, marks=pytest.mark.full) for each in COMPARISONS],
)
async def test_comparison(name: str) -> None:
    async with EmbeddedCluster(1) as cluster:
        await COMPARISONS[name](cluster.bootstrap_servers)
