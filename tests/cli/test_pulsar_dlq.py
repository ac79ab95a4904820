"""`dlq list`, `show` and `replay` on a model of Pulsar's broker: message ids as places, properties of Java's client and of queues."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup.cli import main
from asyncgroup.cli.app import _parser
from asyncgroup.cli.replaying import ReplayStopped
from asyncgroup.errors import UsageError
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire.commands import CommandAck
from tests.cli.programs import free_ports
from tests.cli.pulsar_broker import SentMessage, StoringBroker

Output = pytest.CaptureFixture[str]
DLQ = "orders-billing-DLQ"
WHOLE = "persistent://public/default/orders"
OWN = {"REAL_SUBSCRIPTION": "billing", "__dlq.errors.delivery.count": "6"}


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[StoringBroker]:
    """`orders` with three partitions, `other` without, and the dead letters: of a queue, of Java's client, of another tool."""
    async with StoringBroker() as found:
        found.existing |= {DLQ, "orders", "other"}
        found.partitions["orders"] = 3
        own = {**OWN, "REAL_TOPIC": WHOLE, "ORIGIN_MESSAGE_ID": "12:3:1:0", "trace": "4711"}
        found.dead_letter(DLQ, b"one", key="ann", **{**own, "__dlq.errors.message": "ValueError: bad"})
        java = {"REAL_TOPIC": f"{WHOLE}-partition-2", "ORIGIN_MESSAGE_ID": "12:4:7"}
        found.dead_letter(
            DLQ, b"two", key="bob", **java, REAL_SUBSCRIPTION="audit", ORIGIN_MESSAGE_IDY_TIME="x"
        )
        yield found


async def dlq(broker: StoringBroker, action: str, *arguments: str, topic: str = DLQ) -> int:
    options = _parser().parse_args(["dlq", action, topic, *arguments, "-b", broker.url])
    return int(await options.run(options))


async def test_list_as_table_and_as_json(broker: StoringBroker, capsys: Output) -> None:
    broker.add(DLQ, b"x", b"y")
    assert await dlq(broker, "list") == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.strip(" ─")]
    assert rows[0] == ["record", "time", "origin", "group", "deliveries", "key", "reason"]
    assert [[row[0], *row[3:]] for row in rows[1:5]] == [
        ["1:0:-1", "orders@12:3:1:0", "billing", "6", "ann", "ValueError:", "bad"],
        ["1:1:-1", "orders-partition-2@12:4:7", "audit", "-", "bob", "-"],
        ["1:2:-1:0", "-", "-", "-", "-", "-"],
        ["1:2:-1:1", "-", "-", "-", "-", "-"],
    ]
    assert f"{DLQ}: 4 records" in out
    assert await dlq(broker, "list", "--json", "--max", "1") == 0
    assert json.loads(capsys.readouterr().out) == {
        "partition": -1,
        "message_id": "1:0:-1",
        "timestamp": 1000,
        "time": "1970-01-01 00:00:01.000Z",
        "origin_topic": WHOLE,
        "origin_message_id": "12:3:1:0",
        "group": "billing",
        "deliveries": 6,
        "reason": "ValueError: bad",
        "key": "ann",
    }
    assert {name for _, name in broker.subscriptions if not name.startswith("asyncgroup-dlq-")} == set()


async def test_list_of_an_empty_topic_and_of_none(broker: StoringBroker, capsys: Output) -> None:
    assert await dlq(broker, "list", topic="other") == 0
    assert capsys.readouterr().out == "other: 0 records\n"
    for action in (["list"], ["show", "1:0:-1"], ["replay", "--dry-run"]):
        with pytest.raises(PulsarServerError, match="TopicNotFound"):
            await dlq(broker, *action, topic="none")
    with pytest.raises(UsageError, match="messages of a non-persistent topic are not stored"):
        await dlq(broker, "list", topic="non-persistent://public/default/x")


@pytest.mark.parametrize(
    "words",
    [["dlq", "list", DLQ, "--json"], ["consume", "-t", DLQ, "--from", "earliest", "--max-messages", "2002"]],
)
async def test_what_was_read_is_forgotten(broker: StoringBroker, capsys: Output, words: list[str]) -> None:
    """A long reader keeps no state of old batches; the subscription is its own."""
    for number in range(1000):
        broker.add(DLQ, b"%d" % number, b"x")
    options = _parser().parse_args([*words, "-b", broker.url])
    assert await options.run(options) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2002
    (subscription,) = broker.subscriptions.values()
    assert subscription.acked == set(range(1002))
    acks = broker.of(CommandAck)
    assert {command.ack_type for command in acks} == {1}
    assert len(acks) < 20


async def test_show(broker: StoringBroker, capsys: Output) -> None:
    assert await dlq(broker, "show", "1:0:-1") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"{DLQ}@1:0:-1"
    assert {line.strip() for line in shown} >= {
        "origin      orders@12:3:1:0",
        "trace: 4711",
        "key         ann",
    }
    assert await dlq(broker, "show", "1:1:-1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["message_id"], found["value"]) == ("1:1:-1", "two")
    assert found["dead_letter"]["origin_message_id"] == "12:4:7"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("1:2:-1", f"{DLQ}@1:2:-1: no message has this id; the next one is 1:2:-1:0"),
        ("1:9:-1", f"{DLQ}@1:9:-1: no message has this id, and none follows"),
        ("9:0:-1", f"{DLQ}@9:0:-1: no message has this id, and none follows"),
        ("1:0:3", f"{DLQ}@1:0:3: ids of messages in {DLQ} end with -1, their partition"),
    ],
)
async def test_a_message_that_does_not_exist(broker: StoringBroker, place: str, text: str) -> None:
    broker.add(DLQ, b"x", b"y")
    with pytest.raises(UsageError) as error:
        await dlq(broker, "show", place)
    assert str(error.value) == text


async def test_a_partition_that_does_not_exist(broker: StoringBroker) -> None:
    with pytest.raises(UsageError, match="there is no partition 3; orders has partitions 0 to 2"):
        await dlq(broker, "show", "1:0:3", topic="orders")


async def test_a_value_in_chunks_is_one_message(broker: StoringBroker, capsys: Output) -> None:
    """Its place is its first chunk."""
    for number, part in enumerate((b"half ", b"half")):
        broker.add(DLQ, part, uuid="u", num_chunks_from_msg=2, chunk_id=number, total_chunk_msg_size=9)
    assert await dlq(broker, "list", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["message_id"] for row in rows] == ["1:0:-1", "1:1:-1", "1:2:-1"]
    assert await dlq(broker, "show", "1:2:-1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["value"] == "half half"
    with pytest.raises(UsageError, match="1:3:-1: no message has this id"):
        await dlq(broker, "show", "1:3:-1")
    assert await dlq(broker, "replay", "--yes", "--offsets", "1:2:-1", "--to", "other") == 0
    assert [message.value for message in broker.sent("other")] == [b"half half"]


# --- replay -----------------------------------------------------------------------------------------------------------


async def test_replay_to_the_partitions_of_the_originals(broker: StoringBroker, capsys: Output) -> None:
    """Without the properties of retries and dead letters; a partition that does not exist is chosen by the key."""
    assert await dlq(broker, "replay", "--dry-run") == 0
    out, err = capsys.readouterr()
    assert out == f"{DLQ}@1:0:-1 -> orders-partition-1\n{DLQ}@1:1:-1 -> orders\n"
    assert err == "would replay 2 records: 2 to orders\n"
    assert await dlq(broker, "replay", "--yes") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"{DLQ}@1:0:-1 -> orders@1:0:1"
    assert err == f"2 records replayed, the last one {DLQ}@1:1:-1\n"
    assert broker.sent("orders-partition-1")[0] == SentMessage(b"one", "ann", {"trace": "4711"}, 5)
    written = [message for number in range(3) for message in broker.sent(f"orders-partition-{number}")]
    assert {message.value for message in written} == {b"one", b"two"}
    assert len(broker.topics[DLQ]) == 2


async def test_replay_of_some(broker: StoringBroker, capsys: Output) -> None:
    assert await dlq(broker, "replay", "--yes", "--match", "ValueError", "--to", "other") == 0
    assert await dlq(broker, "replay", "--yes", "--offsets", "1:1:-1", "--to", WHOLE[:-6] + "other") == 0
    assert [message.value for message in broker.sent("other")] == [b"one", b"two"]
    assert await dlq(broker, "replay", "--yes", "--match", "nothing") == 0
    assert capsys.readouterr().err.endswith(f"{DLQ}: no dead letters to replay\n")
    with pytest.raises(UsageError, match="no message has the id 1:7:-1"):
        await dlq(broker, "replay", "--yes", "--offsets", "1:0:-1,1:7:-1")


async def test_replay_with_a_group_continues_after_the_last_one(
    broker: StoringBroker, capsys: Output
) -> None:
    """Nothing is acknowledged by the plan, and each message when its copy is stored."""
    again = ("--group", "again", "--to", "other")
    assert await dlq(broker, "replay", "--dry-run", *again) == 0
    assert not broker.subscription(DLQ, "again").acked
    sent = 0

    def refuse(topic: str) -> int | None:
        nonlocal sent
        sent += 1
        return 22 if sent == 2 else None

    broker.refuse_send = refuse
    with pytest.raises(ReplayStopped) as stopped:
        await dlq(broker, "replay", "--yes", *again)
    assert str(stopped.value).startswith(f"{DLQ}@1:1:-1 was not written to other: ")
    assert capsys.readouterr().err.endswith(f"1 of 2 records replayed, the last one {DLQ}@1:0:-1\n")
    assert broker.subscription(DLQ, "again").acked == {0}
    broker.dead_letter(DLQ, b"three")
    assert await dlq(broker, "replay", "--yes", *again) == 0
    assert [message.value for message in broker.sent("other")] == [b"one", b"two", b"three"]
    capsys.readouterr()
    assert await dlq(broker, "replay", "--yes", *again) == 0
    assert capsys.readouterr() == ("", f"{DLQ}: no dead letters to replay\n")


@pytest.mark.real
async def test_sigterm_ends_after_the_message_that_is_being_written(capsys: Output) -> None:
    async with StoringBroker(free_ports(1)) as broker:
        broker.existing |= {DLQ, "other"}
        for number in range(6):
            broker.dead_letter(DLQ, b"%d" % number)

        def refuse(topic: str) -> None:
            if len(broker.topics[topic]) == 2:
                signal.raise_signal(signal.SIGTERM)

        broker.refuse_send = refuse
        again = ("--yes", "--group", "again", "--to", "other")
        assert await dlq(broker, "replay", *again) == 143
        written = len(broker.topics["other"])
        assert 3 <= written < 6
        assert (
            f"{written} of 6 records replayed, the last one {DLQ}@1:{written - 1}:-1"
            in capsys.readouterr().err
        )
        assert await dlq(broker, "replay", *again) == 0
        assert [message.value for message in broker.sent("other")] == [b"%d" % number for number in range(6)]


async def test_a_reconnect_during_the_replay(broker: StoringBroker) -> None:
    """Messages that come a second time are written once."""

    def cut(topic: str) -> int | None:
        if not broker.topics[topic]:
            broker.unload(DLQ)
        return None

    broker.refuse_send = cut
    for group in ([], ["--group", "again"]):
        broker.topics["other"].clear()
        assert await dlq(broker, "replay", "--yes", "--to", "other", *group) == 0
        assert [message.value for message in broker.sent("other")] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({}, "has no property with its origin topic: choose a topic with --to"),
        ({"REAL_TOPIC": "a/b"}, "has the origin topic 'a/b', which it cannot be sent to"),
        ({"REAL_TOPIC": DLQ}, f"has the origin topic '{DLQ}', which it cannot be sent to"),
        (
            {"REAL_TOPIC": "nowhere"},
            "cannot be sent to nowhere: partitions of persistent://public/default/nowhere: ",
        ),
    ],
)
async def test_a_message_without_a_way_back_stops_the_plan(
    broker: StoringBroker, properties: dict[str, str], text: str
) -> None:
    broker.dead_letter(DLQ, b"x", **properties)
    with pytest.raises(UsageError) as error:
        await dlq(broker, "replay", "--yes")
    assert str(error.value).startswith(f"{DLQ}@1:2:-1 {text}")
    assert all(not broker.topics[f"orders-partition-{number}"] for number in range(3))


async def test_the_end_of_a_topic_that_does_not_come(
    broker: StoringBroker, capsys: Output, caplog: pytest.LogCaptureFixture
) -> None:
    """The first chunk of a value whose second one was never written."""
    broker.add(DLQ, b"half", uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=8)
    assert await dlq(broker, "list") == 0
    assert f"{DLQ}: 2 records" in capsys.readouterr().out
    assert "nothing came for 5 s before the last message (1:2:-1)" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", DLQ, "0@0"], "'0@0' is not a message of Pulsar: ledger:entry:partition"),
        (["show", DLQ, "1:0:-1,1:1:-1"], "is not a message of Pulsar"),
        (["show", DLQ, "1", "0"], "'1 0' is not a message of Pulsar"),
        (
            ["replay", DLQ, "--offsets", "0@1", "--yes"],
            "--offsets on Pulsar are message ids, ledger:entry:partition",
        ),
        (["replay", DLQ, "--offsets", "1:x:0", "--yes"], "is not PARTITION@OFFSET"),
        (
            ["replay", DLQ, "--to", f"persistent://public/default/{DLQ}", "--yes"],
            "is the dead letter topic itself",
        ),
        (["replay", DLQ, "--group", "g", "--match", "x", "--yes"], "it excludes --offsets and --match"),
    ],
)
def test_wrong_arguments_are_usage_errors(capsys: Output, arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dlq", *arguments, "-b", "pulsar://10.0.0.1"])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_message_ids_are_not_for_kafka(capsys: Output) -> None:
    with pytest.raises(SystemExit):
        main(["dlq", "replay", DLQ, "-b", "h:1", "--yes", "--offsets", "1:0:-1"])
    assert "--offsets on Kafka are PARTITION@OFFSET" in capsys.readouterr().err
    assert main(["dlq", "list", "acme/shop/x", "-b", "h:1", "--json"]) == 1
    assert "topic='persistent://acme/shop/x' is not allowed" in capsys.readouterr().err
