"""`asyncgroup topics`: list, describe, create and delete topics, add partitions, delete records."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    add_dry_run,
    add_subject,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.common import positive
from asyncgroup.cli.tables import Column, Row
from asyncgroup.cli.topic_arguments import (
    add_scopes,
    all_topic_names,
    merged_configs,
    parse_assignments,
    parse_configs,
    partitions_in,
    topic_name,
    whole_64,
)
from asyncgroup.cli.topic_rows import (
    DESCRIBE_COLUMNS,
    LIST_COLUMNS,
    OVERRIDE_COLUMNS,
    override_rows,
    partition_row,
)
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.topic_partition import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.admin import Admin, NewTopic
    from asyncgroup.cli.common import Commands

__all__ = ["COLUMNS", "add_parser"]

_CHANGE: Final = (Column("topic", is_name=True), *STATUS_COLUMNS)
_ADDED: Final = (Column("topic", is_name=True), Column("partitions", is_number=True), *STATUS_COLUMNS)
_DELETED: Final = (
    Column("topic", is_name=True),
    Column("partition", is_number=True, is_name=True),
    Column("log_start_offset", is_number=True),
    *STATUS_COLUMNS,
)
COLUMNS: Final = {
    "list": LIST_COLUMNS,
    "describe": DESCRIBE_COLUMNS,
    "describe --with-overrides": OVERRIDE_COLUMNS,
    "create": _CHANGE,
    "delete": _CHANGE,
    "add-partitions": _ADDED,
    "delete-records": _DELETED,
}
"""The columns of each action."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `topics` with its actions."""
    actions = add_subject(
        commands,
        "topics",
        "list, describe, create and delete topics",
        "Lists, describes, creates and deletes topics, adds partitions, and deletes records.",
    )
    _add_list(actions, common)
    _add_describe(actions, common)
    _add_create(actions, common)
    parser = add_action(actions, common, "delete", run_delete, "Delete topics with all their records.")
    parser.add_argument("topics", nargs="+", type=topic_name, metavar="TOPIC", help="the names of topics")
    parser.add_argument("--if-exists", action="store_true", help="a topic that does not exist is no error")
    _add_partitions(actions, common)
    _add_delete_records(actions, common)


def _add_list(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(actions, common, "list", run_list, "List the topics.")
    parser.add_argument(
        "--exclude-internal", action="store_true", help="without Kafka's own, such as __consumer_offsets"
    )


def _add_describe(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(
        actions,
        common,
        "describe",
        run_describe,
        "Describe the partitions of topics. The filters are those of kafka-topics; a partition is listed if one of them applies.",
        has_wide=True,
    )
    parser.add_argument("topics", nargs="*", type=topic_name, metavar="TOPIC", help="default: all topics")
    for option, text in (
        ("--under-replicated", "only partitions with replicas that are not in sync"),
        ("--unavailable", "only partitions without a leader"),
        ("--under-min-isr", "only partitions with fewer replicas in sync than min.insync.replicas"),
        ("--at-min-isr", "only partitions with exactly min.insync.replicas in sync"),
    ):
        parser.add_argument(option, action="store_true", help=text)
    parser.add_argument(
        "--with-overrides",
        action="store_true",
        help="the topics whose configurations override the defaults, and these, instead of partitions",
    )
    # Kafka calls topics internal that brokers write for themselves
    parser.add_argument("--exclude-internal", action="store_true", help="without Kafka's own topics")


def _add_create(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(
        actions,
        common,
        "create",
        run_create,
        "Create topics. Returns when every broker knows them. Without numbers the brokers' defaults apply.",
    )
    parser.add_argument("topics", nargs="+", type=topic_name, metavar="TOPIC", help="the names of topics")
    parser.add_argument("-p", "--partitions", type=positive, metavar="N", help="the number of partitions")
    parser.add_argument(
        "-r", "--replication-factor", type=positive, metavar="N", help="the replicas of each partition"
    )
    parser.add_argument(
        "--replica-assignment",
        type=parse_assignments,
        metavar="1:2,2:3",
        help="the node ids of the replicas of each partition, instead of the two numbers",
    )
    _add_configs(parser)
    parser.add_argument("--if-not-exists", action="store_true", help="a topic that exists is no error")
    add_dry_run(parser)


def _add_configs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="configs",
        type=parse_configs,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a topic configuration; can be repeated. A value with commas is in brackets: NAME=[a,b]",
    )


def _add_partitions(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(
        actions,
        common,
        "add-partitions",
        run_add_partitions,
        "Add partitions to topics. Keys go to other partitions afterwards.",
    )
    parser.add_argument("topics", nargs="+", type=topic_name, metavar="TOPIC", help="the names of topics")
    parser.add_argument(
        "--total", type=positive, required=True, metavar="N", help="the number of partitions afterwards"
    )
    parser.add_argument(
        "--replica-assignment",
        type=parse_assignments,
        metavar="1:2,2:3",
        help="the node ids of the replicas of each new partition",
    )
    add_dry_run(parser)


def _add_delete_records(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(
        actions,
        common,
        "delete-records",
        run_delete_records,
        "Delete the records of partitions before an offset, for all consumers.",
    )
    add_scopes(parser)
    parser.add_argument(
        "--before",
        required=True,
        type=_before,
        metavar="OFFSET",
        help="the first offset that remains, or `latest` for all records",
    )


def _before(text: str) -> int | None:
    # Admin takes None for the high watermark
    return None if text == "latest" else whole_64(text)


# --- actions ----------------------------------------------------------------------------------------------------------


async def run_list(options: argparse.Namespace) -> int:
    """List the topics."""
    report = Report(options)
    async with opened_admin(options) as admin:
        topics = await admin.list_topics(internal=not options.exclude_internal)
    report.rows(
        LIST_COLUMNS,
        [
            {
                "topic": topic.name,
                "partitions": topic.partitions,
                "internal": topic.is_internal,
                "topic_id": str(topic.topic_id),
            }
            for topic in topics
        ],
    )
    return report.exit_code


async def run_describe(options: argparse.Namespace) -> int:
    """Describe the partitions of topics, or their configurations."""
    report = Report(options)
    async with opened_admin(options) as admin:
        # one connection for all lookups: what follows concerns the topics that were found
        names = await all_topic_names(admin, options.topics, internal=not options.exclude_internal)
        found = await admin.describe_topics(names)
        report.errors(found.errors)
        topics = found.values_by_name
        # a row for each topic in place of partitions, so the other filters do not apply
        if options.with_overrides:
            described = await admin.describe_configs("topic", topics)
            report.errors(described.errors)
            report.rows(OVERRIDE_COLUMNS, override_rows(topics, described.values_by_name))
            return report.exit_code
        # requests that only these filters need; a denied one is an error of its topics, and the others are shown
        least = await _min_isr(admin, report, topics) if options.under_min_isr or options.at_min_isr else {}
        adding = await _adding(admin) if options.under_replicated else {}
    rows = [
        {
            **partition_row(topic, partition, least.get(name)),
            "adding": adding.get(TopicPartition(name, partition.partition), 0),
        }
        for name, topic in topics.items()
        for partition in topic.partitions
    ]
    # filtered at the end: --json and the table have the same rows
    report.rows(DESCRIBE_COLUMNS, [row for row in rows if _is_wanted(row, options)])
    return report.exit_code


async def _min_isr(admin: Admin, report: Report, topics: Iterable[str]) -> dict[str, int]:
    """Return `min.insync.replicas` of each topic."""
    name = "min.insync.replicas"
    found = await admin.describe_configs("topic", topics, keys=[name])
    report.errors(found.errors)
    # Kafka's default, should a broker name no value
    return {topic: int(configs[name].value or 1) for topic, configs in found.values_by_name.items()}


async def _adding(admin: Admin) -> dict[TopicPartition, int]:
    """Return how many replicas of each partition are being added, none if that is denied: `TopicService.listAllReassignments` in Kafka."""
    try:
        moving = await admin.replicas.list_reassignments()
    # without these, replicas that are being added count as missing: rather too many rows than none
    except (BrokerError, UnsupportedVersionError):
        return {}
    return {tp: len(each.adding) for tp, each in moving.items()}


def _is_wanted(row: Row, options: argparse.Namespace) -> bool:
    """Apply the filters of `TopicCommand.PartitionDescription` in Kafka: without a leader a partition is below any minimum."""
    # `isr` is of the leader: without one it says who was in sync last
    in_sync, least, has_leader = len(row["isr"]), row["min_isr"], row["leader"] is not None
    filters = (
        (options.under_replicated, in_sync < len(row["replicas"]) - row["adding"]),
        (options.unavailable, not has_leader),
        (options.under_min_isr, not has_leader or (least is not None and in_sync < least)),
        (options.at_min_isr, least is not None and in_sync == least),
    )
    # one of them is enough, as for kafka-topics; without any all are shown
    chosen = [applies for is_set, applies in filters if is_set]
    return any(chosen) if chosen else True


async def run_create(options: argparse.Namespace) -> int:
    """Create topics."""
    # a usage error comes before the connection
    new = _new_topic(options)
    report = Report(options)
    async with opened_admin(options) as admin:
        # a topic that is given twice is created once: a broker refuses one that a request names twice
        names = list(dict.fromkeys(options.topics))
        created = await admin.create_topics(dict.fromkeys(names, new), validate_only=options.dry_run)
    _report_change(
        report,
        names,
        created.errors,
        _done(options, "created"),
        {ErrorCode.TOPIC_ALREADY_EXISTS: "exists"} if options.if_not_exists else {},
    )
    return report.exit_code


def _report_change(
    report: Report,
    names: Iterable[str],
    errors: Mapping[str, AsyncGroupError],
    done: str,
    accepted: Mapping[int, str],
) -> None:
    """Print the status of each topic; `accepted` are the codes that are no errors, with the status to show."""
    statuses = {
        name: accepted[error.code]
        for name, error in errors.items()
        if isinstance(error, BrokerError) and error.code in accepted
    }
    # the exit code follows the errors, so an accepted one must not be among them
    failed = {name: error for name, error in errors.items() if name not in statuses}
    rows = status_rows(names, failed, done, lambda name: {"topic": name})
    report.rows(_CHANGE, [{**row, "status": statuses.get(row["topic"], row["status"])} for row in rows])
    report.errors(failed)


def _new_topic(options: argparse.Namespace) -> NewTopic:
    from asyncgroup.admin import NewTopic

    assignments = options.replica_assignment or ()
    # argparse cannot exclude one option by two that go together
    if assignments and (options.partitions is not None or options.replication_factor is not None):
        options.usage.error("--replica-assignment excludes --partitions and --replication-factor")
    configs = merged_configs(options.configs, "--set", options.usage)
    return NewTopic(options.partitions, options.replication_factor, configs, assignments)


def _done(options: argparse.Namespace, status: str) -> str:
    return "valid" if options.dry_run else status


async def run_delete(options: argparse.Namespace) -> int:
    """Delete topics."""
    report = Report(options)
    names = list(dict.fromkeys(options.topics))
    async with opened_admin(options) as admin:
        deleted = await admin.delete_topics(names)
    _report_change(
        report,
        names,
        deleted.errors,
        "deleted",
        {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "missing"} if options.if_exists else {},
    )
    return report.exit_code


async def run_add_partitions(options: argparse.Namespace) -> int:
    """Add partitions to topics."""
    from asyncgroup.admin import NewPartitions

    report = Report(options)
    names = list(dict.fromkeys(options.topics))
    new = NewPartitions(options.total, options.replica_assignment or ())
    async with opened_admin(options) as admin:
        added = await admin.create_partitions(dict.fromkeys(names, new), validate_only=options.dry_run)
    row = {"partitions": options.total}
    done = _done(options, "added")
    report.rows(_ADDED, status_rows(names, added.errors, done, lambda name: {"topic": name, **row}))
    report.errors(added.errors)
    return report.exit_code


async def run_delete_records(options: argparse.Namespace) -> int:
    """Delete the records of partitions before an offset."""
    report = Report(options)
    async with opened_admin(options) as admin:
        # a topic without partitions stands for all it has now
        partitions = await partitions_in(admin, report, options.scopes)
        deleted = await admin.delete_records(dict.fromkeys(partitions, options.before))
    starts = deleted.values_by_name
    rows = status_rows(
        partitions,
        deleted.errors,
        "deleted",
        lambda tp: {"topic": tp.topic, "partition": tp.partition, "log_start_offset": starts.get(tp)},
    )
    report.rows(_DELETED, rows)
    report.errors(deleted.errors)
    return report.exit_code
