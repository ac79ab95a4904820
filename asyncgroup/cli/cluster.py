"""`asyncgroup cluster`: brokers, the metadata quorum, features, log directories; leaders and replicas."""

from __future__ import annotations

import argparse
import re
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
from asyncgroup.cli.common import whole
from asyncgroup.cli.replicas import REPLICA_COLUMNS, add_replica_actions
from asyncgroup.cli.tables import Column, Row, shown_timestamp
from asyncgroup.cli.topic_arguments import add_scopes, partitions_in
from asyncgroup.error_types import short_error_type

if TYPE_CHECKING:
    from asyncgroup.admin import FeaturesDescription, LogDirDescription, QuorumDescription
    from asyncgroup.cli.common import Commands

__all__ = ["COLUMNS", "add_parser"]

_BROKERS: Final = (
    Column("node", is_number=True, is_name=True),
    Column("host", can_shrink=True),
    Column("port", is_number=True),
    Column("rack"),
    Column("controller"),
    Column("fenced"),
    Column("cluster_id", is_wide=True),
)
_QUORUM: Final = (
    Column("node", is_number=True, is_name=True),
    Column("role"),
    Column("leader_epoch", is_number=True, is_wide=True),
    Column("log_end_offset", is_number=True),
    Column("lag", is_number=True),
    Column("last_fetch_timestamp", text=shown_timestamp),
    Column("last_caught_up_timestamp", text=shown_timestamp),
    Column("directory_id", is_wide=True),
)
_FEATURES: Final = (
    Column("feature", is_name=True),
    Column("min_supported", is_number=True),
    Column("max_supported", is_number=True),
    Column("level", "FINALIZED-LEVEL", is_number=True),
    Column("epoch", is_number=True, is_wide=True),
)
_FEATURES_SET: Final = (Column("feature", is_name=True), Column("level", is_number=True), *STATUS_COLUMNS)
_LOG_DIRS: Final = (
    Column("node", is_number=True, is_name=True),
    Column("path", is_name=True, can_shrink=True),
    Column("replicas", "#REPLICAS", is_number=True),
    Column("size", is_number=True),
    Column("total_bytes", is_number=True),
    Column("usable_bytes", is_number=True),
    Column("cordoned", is_wide=True),
    Column("error", can_shrink=True),
)
_REPLICAS: Final = (
    Column("node", is_number=True, is_name=True),
    Column("path", is_name=True, can_shrink=True),
    Column("topic", is_name=True, can_shrink=True),
    Column("partition", is_number=True, is_name=True),
    Column("size", is_number=True),
    Column("offset_lag", is_number=True),
    Column("future"),
)
COLUMNS: Final = {
    "describe": _BROKERS,
    "quorum": _QUORUM,
    "features": _FEATURES,
    "set-features": _FEATURES_SET,
    "log-dirs": _LOG_DIRS,
    "log-dirs --replicas": _REPLICAS,
    **REPLICA_COLUMNS,
}
"""The columns of each action. Sizes are in bytes."""

_FEATURE: Final = re.compile(r"([^=\s]+)=(\d{1,5})", re.ASCII)


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `cluster` with its actions."""
    actions = add_subject(
        commands,
        "cluster",
        "brokers, quorum, features, log directories and replicas",
        "Describes the brokers, the metadata quorum, the features and the log directories of a cluster; elects leaders, and "
        "reassigns replicas.",
    )
    parser = add_action(actions, common, "describe", run_describe, "Describe the brokers.", has_wide=True)
    parser.add_argument(
        "--include-fenced",
        action="store_true",
        help="also brokers that are registered but not active (Kafka 4.0)",
    )
    add_action(
        actions,
        common,
        "quorum",
        run_quorum,
        "Describe the quorum of KRaft controllers (Kafka 3.3).",
        has_wide=True,
    )
    parser = add_action(
        actions, common, "features", run_features, "Describe the features of the cluster.", has_wide=True
    )
    parser.add_argument(
        "--broker", type=whole, metavar="NODE", help="what this node supports; default: any node"
    )
    _add_set_features(actions, common)
    parser = add_action(
        actions,
        common,
        "log-dirs",
        run_log_dirs,
        "Describe the log directories of brokers and their sizes in bytes.",
        has_wide=True,
    )
    add_scopes(parser, default="all")
    parser.add_argument(
        "--broker", type=whole, action="append", metavar="NODE", help="only this node; can be repeated"
    )
    parser.add_argument("--replicas", action="store_true", help="a row for each replica")
    add_replica_actions(actions, common)


def _add_set_features(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(
        actions,
        common,
        "set-features",
        run_set_features,
        "Change the levels of features. All or none are changed.",
    )
    parser.add_argument(
        "features", nargs="+", type=_feature, metavar="FEATURE=LEVEL", help="such as metadata.version=30"
    )
    parser.add_argument("--downgrade", action="store_true", help="allow lower levels that lose no metadata")
    parser.add_argument(
        "--unsafe-downgrade", action="store_true", help="allow lower levels that lose metadata"
    )
    add_dry_run(parser)


def _feature(text: str) -> tuple[str, int]:
    found = _FEATURE.fullmatch(text)
    # a level is an int16 on the wire
    if found is None or int(found[2]) >= 2**15:
        raise argparse.ArgumentTypeError(f"{text!r} is not FEATURE=LEVEL, such as metadata.version=25")
    return found[1], int(found[2])


# --- brokers and quorum -----------------------------------------------------------------------------------------------


async def run_describe(options: argparse.Namespace) -> int:
    """Describe the brokers."""
    report = Report(options)
    async with opened_admin(options) as admin:
        found = await admin.brokers.describe(include_fenced=options.include_fenced)
    rows = [
        {
            "node": each.node_id,
            "host": each.host,
            "port": each.port,
            "rack": each.rack,
            "controller": each.node_id == found.controller,
            "fenced": each.is_fenced,
            "cluster_id": found.cluster_id,
        }
        for each in found.brokers
    ]
    report.rows(_BROKERS, rows)
    return report.exit_code


async def run_quorum(options: argparse.Namespace) -> int:
    """Describe the metadata quorum."""
    report = Report(options)
    async with opened_admin(options) as admin:
        found = await admin.brokers.quorum()
    report.rows(_QUORUM, _quorum_rows(found))
    return report.exit_code


def _quorum_rows(found: QuorumDescription) -> list[Row]:
    """Return the rows of `kafka-metadata-quorum describe --replication`: leader, followers, observers."""
    # the leader does not follow itself: its log end is in the list of voters
    voters, observers = ([*found.voters], [*found.observers])
    ends = {each.node_id: each.log_end_offset for each in voters}
    leader_end = None if found.leader is None else ends.get(found.leader)
    rows: list[Row] = []
    for each in [*voters, *observers]:
        role = "observer" if each in observers else "leader" if each.node_id == found.leader else "follower"
        # if an end is unknown, the lag is unknown, not 0
        is_known = leader_end is not None and each.log_end_offset is not None
        rows.append(
            {
                "node": each.node_id,
                "role": role,
                "leader_epoch": found.leader_epoch,
                "log_end_offset": each.log_end_offset,
                "lag": (leader_end or 0) - (each.log_end_offset or 0) if is_known else None,
                "last_fetch_timestamp": each.last_fetch_timestamp,
                "last_caught_up_timestamp": each.last_caught_up_timestamp,
                "directory_id": None if each.directory_id is None else str(each.directory_id),
            }
        )
    return rows


# --- features ---------------------------------------------------------------------------------------------------------


async def run_features(options: argparse.Namespace) -> int:
    """Describe the features."""
    report = Report(options)
    async with opened_admin(options) as admin:
        found = await admin.brokers.features(broker=options.broker)
    report.rows(_FEATURES, _feature_rows(found))
    return report.exit_code


def _feature_rows(found: FeaturesDescription) -> list[Row]:
    rows: list[Row] = []
    # a feature of an older release may be finalized and no longer supported, and the other way round
    for name in sorted({*found.supported, *found.finalized}):
        least, most = found.supported.get(name, (None, None))
        level = found.finalized.get(name)
        row = {"feature": name, "min_supported": least, "max_supported": most, "level": level}
        rows.append({**row, "epoch": found.epoch})
    return rows


async def run_set_features(options: argparse.Namespace) -> int:
    """Change the levels of features."""
    from asyncgroup.admin import FeatureUpdate

    # a dict keeps the last one; two levels for a feature are a mistake
    levels = dict(options.features)
    if len(levels) < len(options.features):
        options.usage.error("a feature is given twice")
    if options.downgrade and options.unsafe_downgrade:
        options.usage.error("--unsafe-downgrade excludes --downgrade")
    # the safe way unless another one is asked for: a typo in a level must not lose metadata
    kind = (
        "UNSAFE_DOWNGRADE"
        if options.unsafe_downgrade
        else "SAFE_DOWNGRADE"
        if options.downgrade
        else "UPGRADE"
    )
    report = Report(options)
    async with opened_admin(options) as admin:
        updated = await admin.brokers.update_features(
            {name: FeatureUpdate(level, kind) for name, level in levels.items()},
            validate_only=options.dry_run,
        )
    done = "valid" if options.dry_run else "set"
    report.rows(
        _FEATURES_SET,
        status_rows(levels, updated.errors, done, lambda name: {"feature": name, "level": levels[name]}),
    )
    report.errors(updated.errors)
    return report.exit_code


# --- log directories --------------------------------------------------------------------------------------------------


async def run_log_dirs(options: argparse.Namespace) -> int:
    """Describe log directories."""
    report = Report(options)
    async with opened_admin(options) as admin:
        partitions = await partitions_in(admin, report, options.scopes) if options.scopes else None
        # all scopes were wrong, which is reported; None would mean all partitions
        if partitions == []:
            return report.exit_code
        found = await admin.brokers.log_dirs(options.broker, partitions=partitions)
    # the results come in the order of the responses
    dirs = [(node, each) for node, several in sorted(found.values_by_name.items()) for each in several]
    if options.replicas:
        report.rows(_REPLICAS, [row for node, each in dirs for row in _replica_rows(node, each)])
    else:
        report.rows(_LOG_DIRS, [_log_dir_row(node, each) for node, each in dirs])
    for node, each in dirs:
        # a directory that is offline has a row, and fails the command
        if each.error is not None:
            report.error(f"node {node}: {each.error}")
    report.node_errors(found.errors)
    return report.exit_code


def _log_dir_row(node: int, found: LogDirDescription) -> Row:
    return {
        "node": node,
        "path": found.path,
        "replicas": len(found.replicas),
        "size": sum(each.size for each in found.replicas),
        "total_bytes": found.total_bytes,
        "usable_bytes": found.usable_bytes,
        "cordoned": found.is_cordoned,
        "error": None if found.error is None else short_error_type(found.error),
    }


def _replica_rows(node: int, found: LogDirDescription) -> list[Row]:
    return [
        {
            "node": node,
            "path": found.path,
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "size": each.size,
            "offset_lag": each.offset_lag,
            "future": each.is_future,
        }
        for each in found.replicas
    ]
