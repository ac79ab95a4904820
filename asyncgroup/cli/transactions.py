"""`asyncgroup transactions`: list and describe transactions and producers, find hanging transactions, abort them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    add_subject,
    comma_separated,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.common import argument, seconds_or_zero, whole
from asyncgroup.cli.tables import Column, Row, shown_timestamp
from asyncgroup.cli.topic_arguments import (
    add_scopes,
    parse_partition,
    partitions_in,
    whole_64,
)
from asyncgroup.errors import AsyncGroupError

if TYPE_CHECKING:
    from asyncgroup.admin import Admin
    from asyncgroup.cli.common import Commands
    from asyncgroup.topic_partition import TopicPartition

__all__ = ["COLUMNS", "add_parser"]

_PLACE: Final = (
    Column("topic", is_name=True, can_shrink=True),
    Column("partition", is_number=True, is_name=True),
)
_LISTED: Final = (
    Column("transactional_id", is_name=True, can_shrink=True),
    Column("coordinator", is_number=True),
    Column("producer_id", is_number=True),
    Column("state"),
)
_DESCRIBED: Final = (
    *_LISTED[:3],
    Column("producer_epoch", is_number=True),
    _LISTED[3],
    Column("timeout", is_number=True),
    Column("start_timestamp", text=shown_timestamp),
    Column("partitions", can_shrink=True),
)
_PRODUCERS: Final = (
    *_PLACE,
    Column("producer_id", is_number=True, is_name=True),
    Column("producer_epoch", is_number=True),
    Column("last_sequence", is_number=True),
    Column("last_timestamp", text=shown_timestamp),
    Column("coordinator_epoch", is_number=True),
    Column("start_offset", is_number=True),
)
_HANGING: Final = (
    *_PLACE,
    Column("start_offset", is_number=True, is_name=True),
    Column("producer_id", is_number=True),
    Column("producer_epoch", is_number=True),
    Column("coordinator_epoch", is_number=True),
    Column("last_timestamp", text=shown_timestamp),
    Column("duration", is_number=True),
    Column("transactional_id", can_shrink=True),
)
_ABORTED: Final = (*_PLACE, *STATUS_COLUMNS)
COLUMNS: Final = {
    "list": _LISTED,
    "describe": _DESCRIBED,
    "producers": _PRODUCERS,
    "find-hanging": _HANGING,
    "abort": _ABORTED,
}
"""The columns of each action. Timestamps are in ms since 1970, `timeout` and `duration` in seconds."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `transactions` with its actions."""
    actions = add_subject(
        commands,
        "transactions",
        "list and describe transactions, find and abort hanging ones",
        "Lists and describes transactions and the producers of partitions, and finds hanging transactions (KIP-664). Needs "
        "Kafka 3.0.",
    )
    _add_list(actions, common)
    parser = add_action(
        actions,
        common,
        "describe",
        run_describe,
        "Describe transactional ids, as their coordinators know them.",
    )
    parser.add_argument("ids", nargs="+", metavar="TRANSACTIONAL-ID", help="`list` shows them")
    parser = add_action(
        actions,
        common,
        "producers",
        run_producers,
        "List the producers that partitions know. START-OFFSET is that of an open transaction.",
    )
    add_scopes(parser)
    _add_broker(parser)
    parser = add_action(
        actions,
        common,
        "find-hanging",
        run_find_hanging,
        "Find open transactions that no coordinator will end. Readers with read_committed wait at them.",
    )
    add_scopes(parser, default="all topics")
    parser.add_argument(
        "--max-transaction-timeout",
        type=seconds_or_zero,
        # Kafka's default for brokers
        default=900.0,
        metavar="S",
        help="the brokers' transaction.max.timeout.ms, in seconds (default: 900); younger transactions do not hang",
    )
    _add_broker(parser)
    _add_abort(actions, common)


def _add_list(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(actions, common, "list", run_list, "List the transactional ids of all brokers.")
    parser.add_argument(
        "--state",
        type=argument(_states),
        action="extend",
        default=[],
        metavar="A,B",
        help="only in these states, by Kafka's names such as Ongoing",
    )
    parser.add_argument(
        "--producer-id", type=whole_64, action="append", default=[], metavar="N", help="only of this producer"
    )
    parser.add_argument(
        "--longer-than",
        type=seconds_or_zero,
        metavar="S",
        help="only transactions that began more than S seconds ago (Kafka 3.8)",
    )
    parser.add_argument(
        "--pattern", metavar="REGEX", help="only ids that match this regular expression of RE2 (Kafka 4.1)"
    )


def _states(text: str) -> list[str]:
    # imported when the option is given: other commands start without the client
    from asyncgroup.admin.transaction_values import checked_transaction_states

    return checked_transaction_states(comma_separated(text))


def _add_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        type=whole,
        metavar="NODE",
        help="ask this node, which has a replica, instead of the leaders",
    )


def _add_abort(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(
        actions,
        common,
        "abort",
        run_abort,
        "Abort a hanging transaction in one partition. Only for those of find-hanging: the coordinator of a live transaction "
        "does not know of it.",
    )
    parser.add_argument("partition", type=parse_partition, metavar="TOPIC:PARTITION", help="where it hangs")
    parser.add_argument(
        "--start-offset",
        type=whole_64,
        metavar="N",
        help="the first offset of the transaction, as find-hanging shows it",
    )
    parser.add_argument(
        "--producer-id", type=whole_64, metavar="N", help="instead: the producer, with the next two"
    )
    parser.add_argument("--producer-epoch", type=whole, metavar="N", help="its epoch")
    parser.add_argument("--coordinator-epoch", type=whole, metavar="N", help="default: 0")


# --- actions ----------------------------------------------------------------------------------------------------------


async def run_list(options: argparse.Namespace) -> int:
    """List the transactional ids."""
    report = Report(options)
    async with opened_admin(options) as admin:
        listed = await admin.transactions.list(
            states=options.state,
            producer_ids=options.producer_id,
            longer_than=options.longer_than,
            pattern=options.pattern,
        )
    # the columns have the names of the attributes
    keys = [column.key for column in _LISTED]
    report.rows(_LISTED, [{key: getattr(each, key) for key in keys} for each in listed.transactions])
    # transactions of a node that does not answer are missing, which the exit code shows
    report.node_errors(listed.errors)
    return report.exit_code


async def run_describe(options: argparse.Namespace) -> int:
    """Describe transactional ids."""
    report = Report(options)
    # an id that is given twice is asked for once, and has one row
    names = list(dict.fromkeys(options.ids))
    async with opened_admin(options) as admin:
        described = await admin.transactions.describe(names)
    # all but the partitions, which are shown as the arguments of other commands
    keys = [column.key for column in _DESCRIBED if column.key != "partitions"]
    found = [described.values_by_name[name] for name in names if name in described.values_by_name]
    rows = [
        {
            **{key: getattr(each, key) for key in keys},
            "partitions": [_place_text(tp) for tp in each.partitions],
        }
        for each in found
    ]
    report.rows(_DESCRIBED, rows)
    report.errors(described.errors)
    return report.exit_code


def _place_text(tp: TopicPartition) -> str:
    return f"{tp.topic}:{tp.partition}"


async def run_producers(options: argparse.Namespace) -> int:
    """List the producers of partitions."""
    report = Report(options)
    async with opened_admin(options) as admin:
        # with --broker as well: a follower does not say which partitions there are
        partitions = await partitions_in(admin, report, options.scopes)
        found = await admin.transactions.producers(partitions, broker=options.broker)
    rows = [
        {
            **_place(tp),
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "last_sequence": each.last_sequence,
            "last_timestamp": each.last_timestamp,
            "coordinator_epoch": each.coordinator_epoch,
            "start_offset": each.current_transaction_start_offset,
        }
        # by partition: the results come in the order of the nodes
        for tp, producers in sorted(found.values_by_name.items())
        for each in producers
    ]
    report.rows(_PRODUCERS, rows)
    report.errors(found.errors)
    return report.exit_code


def _place(tp: TopicPartition) -> Row:
    return {"topic": tp.topic, "partition": tp.partition}


async def run_find_hanging(options: argparse.Namespace) -> int:
    """Find hanging transactions."""
    report = Report(options)
    async with opened_admin(options) as admin:
        # without a scope all partitions are searched, and a scope whose topics are missing has none
        wanted = await partitions_in(admin, report, options.scopes)
        if options.scopes and not wanted:
            return report.exit_code
        found = await admin.transactions.find_hanging(
            partitions=wanted,
            broker=options.broker,
            max_transaction_timeout=options.max_transaction_timeout,
        )
    # topic and partition are one attribute
    keys = [column.key for column in _HANGING[2:]]
    rows = [
        {**_place(each.partition), **{key: getattr(each, key) for key in keys}} for each in found.transactions
    ]
    report.rows(_HANGING, rows)
    report.errors(found.errors)
    return report.exit_code


async def run_abort(options: argparse.Namespace) -> int:
    """Abort a hanging transaction in one partition."""
    # the pair names a transaction; the coordinator's epoch has a default
    by_producer = options.producer_id is not None and options.producer_epoch is not None
    other: list[Any] = [options.producer_id, options.producer_epoch, options.coordinator_epoch]
    if (options.start_offset is None) != by_producer or (
        options.start_offset is not None and other != [None] * 3
    ):
        options.usage.error("give either --start-offset, or --producer-id and --producer-epoch")
    report = Report(options)
    errors: dict[TopicPartition, Exception] = {}
    async with opened_admin(options) as admin:
        try:
            await _abort(admin, options)
        # as a row, like the errors of commands with several names
        except AsyncGroupError as error:
            errors[options.partition] = error
    report.rows(_ABORTED, status_rows([options.partition], errors, "aborted", _place))
    report.errors(errors)
    return report.exit_code


async def _abort(admin: Admin, options: argparse.Namespace) -> None:
    # Admin looks the producer up at the leader, and aborts nothing if that has no such transaction
    if options.start_offset is not None:
        await admin.transactions.abort_at(options.partition, options.start_offset)
    else:
        await admin.transactions.abort(
            options.partition,
            producer_id=options.producer_id,
            producer_epoch=options.producer_epoch,
            coordinator_epoch=options.coordinator_epoch,
        )
