"""`asyncgroup dlq list | show | replay`: list and show dead letters, and write them to their origin topics again.

On Kafka and on Pulsar, which differ in how a dead letter is addressed and in what reads it.
"""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from asyncgroup.checks import check_topic
from asyncgroup.cli.client_configs import client_config
from asyncgroup.cli.common import argument, group_id, positive, topic_name
from asyncgroup.cli.connection_options import ConnectionOptions, add_connection_options, connection_options
from asyncgroup.cli.dead_letter_topic import read_one, read_topic
from asyncgroup.cli.extras import INSTALL_RICH, require_rich
from asyncgroup.cli.offset_spans import OffsetSpan, log_spans, parse_spans
from asyncgroup.cli.printing import json_object
from asyncgroup.cli.pulsar_options import pulsar_config
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.cli.dead_letter_rows import DeadLetterFields
    from asyncgroup.model import Record
    from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["add_parser", "reading_config"]

_DESCRIPTION: Final = (
    "Looks at the records of a dead letter topic, and sends them back. Reads the headers of KIP-1191 and the properties "
    "of Pulsar; records without either are shown with -. Nothing is committed or acknowledged, except by replay --group."
)


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `dlq` with its subcommands."""
    parser = commands.add_parser("dlq", help="list, show and replay dead letters", description=_DESCRIPTION)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_list(actions, common)
    _add_show(actions, common)
    _add_replay(actions, common)


def _add_list(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = actions.add_parser(
        "list",
        parents=[common],
        help="list all dead letters, and count them by reason",
        description="Reads the whole topic and prints one line for each record, then the number of records by reason.",
    )
    add_connection_options(parser, reads_pulsar=True)
    _add_topic(parser)
    parser.add_argument(
        "--max", type=positive, metavar="N", help="list N records at most; all are counted by reason"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON object for each record, without the value and the count",
    )
    parser.set_defaults(run=run_list)


def _add_show(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = actions.add_parser(
        "show",
        parents=[common],
        help="show one record with its headers and value",
        description="Shows one record with all its headers and its value.",
    )
    add_connection_options(parser, reads_pulsar=True)
    _add_topic(parser)
    parser.add_argument(
        "place",
        metavar="PARTITION@OFFSET",
        help="the record, as `list` prints it: on Pulsar its message id; on Kafka also as two arguments, PARTITION OFFSET",
    )
    parser.add_argument("offset", nargs="?", metavar="OFFSET", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the record as a JSON object")
    parser.set_defaults(run=run_show)


def _add_replay(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = actions.add_parser(
        "replay",
        parents=[common],
        help="send records back to their origin topics",
        description="Writes dead letters to the topics and partitions they came from, with their keys, values, timestamps "
        "and headers, but without the headers of retries and dead letters: deliveries are counted from 1 again. The "
        "topics have the records twice then: every group that reads these topics gets the records again, not only the one "
        "that failed. Asks before it writes. The dead letters stay in their topic: a second replay writes them a second time, except with "
        "--group.",
    )
    add_connection_options(parser, reads_pulsar=True)
    _add_topic(parser)
    parser.add_argument(
        "--offsets",
        type=_places,
        action="extend",
        metavar="PARTITION@OFFSET",
        help="only these records: 0@17, or 0@17-42 for a range, several separated by commas; on Pulsar message ids",
    )
    parser.add_argument("--match", metavar="TEXT", help="only records whose reason contains this text")
    parser.add_argument(
        "--to",
        type=argument(topic_name),
        metavar="TOPIC",
        help="write to this topic instead; the key determines the partition",
    )
    parser.add_argument(
        "--group",
        type=group_id,
        help="continue after the offsets that this group has committed for the dead letter topic, and commit what was "
        "written, so that the next replay continues there; use a group without members. On Pulsar a subscription of this "
        "name, which is created also by --dry-run: what was written is acknowledged in it",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, and write nothing"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask; required without a terminal")
    parser.set_defaults(run=run_replay)


def _add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", type=argument(topic_name), metavar="TOPIC", help="the dead letter topic")


def _places(text: str) -> Sequence[OffsetSpan | MessageId]:
    try:
        return parse_spans(text)
    except ValueError as error:
        if "@" not in text and ":" in text:
            from asyncgroup.cli.pulsar_dead_letters import parse_message_ids

            with contextlib.suppress(ConfigError):
                return parse_message_ids(text)
        raise argparse.ArgumentTypeError(str(error)) from None


def reading_config(options: argparse.Namespace) -> ConsumerConfig:
    """Return the configuration for reading a dead letter topic: without records of aborted transactions by default."""
    # to look a topic up must not create it, even if other programs with the same properties may create topics
    keys = {"chunks": "assemble", "allow_auto_topic_creation": False}
    return client_config(
        options, ConsumerConfig, keys, client_id="asyncgroup-dlq", isolation_level="read_committed"
    )


async def run_list(options: argparse.Namespace) -> int:
    """List the records of the topic.

    Raises RichMissing, BrokerError or PulsarServerError for an unknown topic, and as the iterators of both clients.
    """
    if not options.json:
        # before anything is read: a topic may take minutes
        require_rich("the table", f"{INSTALL_RICH}, or use --json")
    rows: list[DeadLetterFields] = []
    reasons: Counter[str | None] = Counter()
    async with aclosing(_read_rows(options)) as all_rows:
        # without the values, which may be large: all rows are kept until the end
        async for row in all_rows:
            # all of them, also those beyond --max
            reasons[row.reason] += 1
            if options.max is None or len(rows) < options.max:
                rows.append(row)
    if options.json:
        for row in rows:
            print(json_object(row.as_dict()))
    else:
        from asyncgroup.cli.dead_letter_table import print_summary, print_table

        print_table(rows, sum(reasons.values()))
        print_summary(options.topic, reasons)
    return 0


def _read_rows(options: argparse.Namespace) -> AsyncGenerator[DeadLetterFields, None]:
    given = connection_options(options)
    if (service_url := given.service_url) is None:
        return _read_kafka_rows(options, _kafka_servers(options, given))
    from asyncgroup.cli.pulsar_dead_letters import read_rows

    return read_rows(service_url, pulsar_config(given), options.topic)


async def _read_kafka_rows(
    options: argparse.Namespace, servers: str
) -> AsyncGenerator[DeadLetterFields, None]:
    from asyncgroup.cli.dead_letter_rows import DeadLetterRow
    from asyncgroup.consumer import Consumer

    async with Consumer(servers, reading_config(options)) as consumer:
        # up to the end as it is now: the list ends also while the topic grows
        spans = await log_spans(consumer, options.topic)
        async with aclosing(read_topic(consumer, options.topic, spans.values())) as records:
            async for record in records:
                yield DeadLetterRow.of(record)


def _kafka_servers(options: argparse.Namespace, given: ConnectionOptions) -> str:
    """Return the bootstrap servers, after a check of what the arguments accept for Pulsar. Raises ConfigError."""
    servers = given.require_servers(options.usage)
    check_topic(options.topic)
    return servers


async def run_show(options: argparse.Namespace) -> int:
    """Show one record. Raises UsageError if there is none, BrokerError for an unknown topic, and as `run_list`."""
    from asyncgroup.cli.dead_letter_rows import full_dict, full_text

    record, row = await _read_one(options)
    if options.json:
        print(json_object(full_dict(record, row)))
    else:
        print(full_text(record, record.topic, row))
    return 0


async def _read_one(options: argparse.Namespace) -> tuple[Record, DeadLetterFields]:
    given = connection_options(options)
    if (service_url := given.service_url) is not None:
        from asyncgroup.cli.pulsar_dead_letters import PulsarDeadLetterRow, read_message
        from asyncgroup.pulsar.client import PulsarClient

        wanted = _message_id(options)
        async with PulsarClient(service_url, pulsar_config(given)) as client:
            message = await read_message(client, options.topic, wanted)
        return message, PulsarDeadLetterRow.of(message)
    from asyncgroup.cli.dead_letter_rows import DeadLetterRow
    from asyncgroup.consumer import Consumer

    span = _place(options)
    async with Consumer(_kafka_servers(options, given), reading_config(options)) as consumer:
        record = await read_one(consumer, options.topic, span)
    return record, DeadLetterRow.of(record)


def _place(options: argparse.Namespace) -> OffsetSpan:
    """Return the record that `show` was given; exit with a usage error if it is not one."""
    try:
        spans = parse_spans(options.place if options.offset is None else f"{options.place}@{options.offset}")
        # `parse_spans` also accepts lists and ranges
        if len(spans) != 1 or spans[0].end != spans[0].start + 1:
            raise ValueError("more than one record")
    except ValueError:
        # this exits, so `spans` is known below
        options.usage.error(
            f"{_given_place(options)!r} is not a record: PARTITION@OFFSET, or PARTITION OFFSET"
        )
    return spans[0]


def _message_id(options: argparse.Namespace) -> MessageId:
    """Return the message that `show` was given; exit with a usage error if it is not an id."""
    from asyncgroup.cli.pulsar_dead_letters import parse_message_ids

    try:
        (found,) = parse_message_ids(_given_place(options))
    except ValueError:
        # this exits, so `found` is known below
        options.usage.error(
            f"{_given_place(options)!r} is not a message of Pulsar: ledger:entry:partition, or ledger:entry:partition:index"
        )
    return found


def _given_place(options: argparse.Namespace) -> str:
    return str(options.place if options.offset is None else f"{options.place} {options.offset}")


async def run_replay(options: argparse.Namespace) -> int:
    """Send records back; see `asyncgroup.cli.dlq_replay` and `pulsar_replay`."""
    given = connection_options(options)
    is_pulsar = given.service_url is not None
    kinds = {isinstance(each, OffsetSpan) for each in options.offsets or ()}
    if kinds - {not is_pulsar}:
        named = "message ids, ledger:entry:partition" if is_pulsar else "PARTITION@OFFSET"
        options.usage.error(f"--offsets on {'Pulsar' if is_pulsar else 'Kafka'} are {named}")
    if (service_url := given.service_url) is not None:
        from asyncgroup.cli.pulsar_replay import replay_messages

        return await replay_messages(options, service_url, pulsar_config(given))
    from asyncgroup.cli.dlq_replay import replay

    check_topic(options.topic)
    if options.to is not None:
        check_topic(options.to)
    return await replay(options, reading_config(options))
