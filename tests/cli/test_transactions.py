"""`transactions`: listed, described and searched; a hanging one is aborted by what `find-hanging` prints. In virtual time."""

from __future__ import annotations

from asyncgroup import Producer, ProducerConfig, TopicPartition
from tests.broker.batches import append
from tests.broker.internals import log_of
from tests.broker.transactional import transactional
from tests.cli.admin_commands import Commands
from tests.stories.virtual import VirtualEnvironment


def hang(env: VirtualEnvironment, tp: TopicPartition) -> None:
    """Write a record of 1970 in a transaction that no coordinator knows."""
    append(log_of(env.cluster, *tp), transactional(b"x", producer_id=9, epoch=3), 0)


async def test_open_transactions(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    assert await asyncgroup.json("transactions", "list") == []
    config = ProducerConfig(transactional_id="tx")
    async with Producer(env.bootstrap_servers, config) as producer, producer.transaction():
        await producer.send("orders", b"x", partition=0)
        (listed,) = await asyncgroup.json("transactions", "list", "--state", "Ongoing")
        assert (listed["transactional_id"], listed["state"]) == ("tx", "Ongoing")
        assert listed["coordinator"] == env.cluster.transaction_coordinator("tx")
        some = ("--producer-id", str(listed["producer_id"]), "--pattern", "t.*")
        assert (await asyncgroup.ok("transactions", "list", "-q", *some)).lines == ["tx"]
        assert await asyncgroup.json("transactions", "list", "--longer-than", "99") == []

        printed = await asyncgroup("transactions", "describe", "none", "tx", "--json")
        (described,) = printed.rows
        assert printed.code == 1
        assert "TRANSACTIONAL_ID_NOT_FOUND" in printed.err
        assert described["partitions"] == ["orders:0"]
        assert (described["timeout"], described["producer_id"]) == (60.0, listed["producer_id"])
        headings, row = (await asyncgroup.ok("transactions", "describe", "tx")).table()
        assert dict(zip(headings, row, strict=True))["START-TIMESTAMP"].endswith("Z")

        (known,) = await asyncgroup.json("transactions", "producers", "orders:0,1")
        assert (known["partition"], known["producer_id"], known["start_offset"]) == (
            0,
            listed["producer_id"],
            0,
        )
        printed = await asyncgroup("transactions", "producers", "orders:9", "nope")
        assert (printed.code, len(printed.errors)) == (1, 2)
        assert await asyncgroup.json("transactions", "find-hanging") == []


async def test_a_hanging_transaction_is_found_and_aborted(
    asyncgroup: Commands, env: VirtualEnvironment
) -> None:
    hang(env, TopicPartition("orders", 1))
    hang(env, TopicPartition("orders", 2))
    for scope, count in (("orders", 2), ("orders:1", 1), ("orders:0", 0)):
        assert len(await asyncgroup.json("transactions", "find-hanging", scope)) == count
    (row,) = await asyncgroup.json("transactions", "find-hanging", "orders:1")
    assert (row["producer_id"], row["producer_epoch"], row["transactional_id"]) == (9, 3, None)
    printed = await asyncgroup("transactions", "find-hanging", "nope")
    assert (printed.code, printed.out) == (1, "")
    place = f"{row['topic']}:{row['partition']}"
    printed = await asyncgroup("transactions", "abort", place, "--start-offset", "77", "--json")
    assert printed.code == 1
    assert printed.rows == [{"topic": "orders", "partition": 1, "status": "failed", "error": "ConfigError"}]
    (line,) = printed.errors
    assert line.startswith("asyncgroup transactions abort: ")
    assert "open from 0" in line
    printed = await asyncgroup("transactions", "abort", "nope:0", "--start-offset", "1")
    assert printed.table()[1] == ["nope", "0", "failed", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert printed.errors[0].endswith(
        "; `asyncgroup topics list` shows the topics and their numbers of partitions"
    )
    by_other = ("--producer-id", "9", "--producer-epoch", "2")
    printed = await asyncgroup("transactions", "abort", place, *by_other)
    assert (printed.code, printed.table()[1]) == (1, ["orders", "1", "failed", "INVALID_PRODUCER_EPOCH"])
    assert (await asyncgroup("transactions", "abort", place, *by_other, "-q")).out == ""
    aborted = await asyncgroup.json(
        "transactions", "abort", place, "--start-offset", str(row["start_offset"])
    )
    assert aborted == [{"topic": "orders", "partition": 1, "status": "aborted", "error": None}]
    by_producer = ("--producer-id", "9", "--producer-epoch", "3")
    await asyncgroup.ok("transactions", "abort", "orders:2", *by_producer)
    assert await asyncgroup.json("transactions", "find-hanging") == []
