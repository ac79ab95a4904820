"""`cluster`: brokers, quorum, features and log directories, and nodes that do not answer, in virtual time."""

from __future__ import annotations

from asyncgroup.admin import QuorumDescription, QuorumReplica
from asyncgroup.cli.cluster import _quorum_rows
from tests.cli.admin_commands import Commands
from tests.stories.virtual import VirtualEnvironment


async def test_brokers_quorum_and_features(asyncgroup: Commands) -> None:
    rows = await asyncgroup.json("cluster", "describe")
    assert [row["node"] for row in rows] == [1, 2, 3]
    assert [row["controller"] for row in rows].count(True) == 1
    assert len({row["cluster_id"] for row in rows}) == 1
    assert await asyncgroup.json("cluster", "describe", "--include-fenced") == rows
    quorum = await asyncgroup.json("cluster", "quorum")
    assert [row["role"] for row in quorum].count("leader") == 1
    features = {row["feature"]: row for row in await asyncgroup.json("cluster", "features", "--broker", "2")}
    level = features["metadata.version"]["level"]
    headings, *_ = (await asyncgroup.ok("cluster", "features")).table()
    assert headings == ["FEATURE", "MIN-SUPPORTED", "MAX-SUPPORTED", "FINALIZED-LEVEL"]
    checked = await asyncgroup.json("cluster", "set-features", f"metadata.version={level}", "--dry-run")
    assert checked == [{"feature": "metadata.version", "level": level, "status": "valid", "error": None}]
    printed = await asyncgroup("cluster", "set-features", "metadata.version=9999")
    assert (printed.code, printed.table()[1][2]) == (1, "failed")


async def test_log_directories(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    rows = await asyncgroup.json("cluster", "log-dirs")
    assert [row["node"] for row in rows] == [1, 2, 3]
    replicas = await asyncgroup.json("cluster", "log-dirs", "orders:0,1", "--replicas", "--broker", "1")
    assert {(row["node"], row["topic"]) for row in replicas} <= {(1, "orders")}
    assert {row["partition"] for row in replicas} <= {0, 1}
    printed = await asyncgroup("cluster", "log-dirs", "nope")
    assert (printed.code, printed.out) == (1, "")
    env.cluster.faults.on("DescribeLogDirs", node=2, times=None).error("CLUSTER_AUTHORIZATION_FAILED")
    printed = await asyncgroup("cluster", "log-dirs", "--json")
    assert printed.code == 1
    assert {row["node"] for row in printed.rows if row["error"] is None} == {1, 3}
    assert "node 2" in printed.err


def test_the_lag_of_a_quorum() -> None:
    voters = (QuorumReplica(1, 90), QuorumReplica(2, 100), QuorumReplica(3, None))
    found = QuorumDescription(2, 7, 100, voters, (QuorumReplica(4, 80),), {})
    rows = [(row["node"], row["role"], row["lag"]) for row in _quorum_rows(found)]
    assert rows == [(1, "follower", 10), (2, "leader", 0), (3, "follower", None), (4, "observer", 20)]
    assert [row["lag"] for row in _quorum_rows(QuorumDescription(None, 7, None, voters, (), {}))] == [
        None
    ] * 3
