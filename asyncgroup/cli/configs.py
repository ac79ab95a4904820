"""`asyncgroup configs`: describe and alter the configurations of topics, brokers and groups."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    add_dry_run,
    add_subject,
    comma_separated,
    connected,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.connection_options import read_properties
from asyncgroup.cli.tables import Column, Row
from asyncgroup.cli.topic_arguments import merged_configs, parse_configs
from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    from asyncgroup.admin import Admin, ConfigChanges, ConfigDescription
    from asyncgroup.cli.common import Commands
    from asyncgroup.cluster import Cluster

__all__ = ["COLUMNS", "add_parser"]

KINDS: Final = ("topic", "broker", "group")

_DESCRIBED: Final = (
    Column("kind"),
    Column("name", is_name=True, can_shrink=True),
    Column("config", is_name=True),
    Column("value", can_shrink=True),
    Column("source"),
    Column("sensitive", is_wide=True),
    Column("read_only", is_wide=True),
    Column("synonyms", is_wide=True, can_shrink=True),
)
_ALTERED: Final = (Column("kind"), Column("name", is_name=True), *STATUS_COLUMNS)
COLUMNS: Final = {"describe": _DESCRIBED, "alter": _ALTERED}
"""The columns of each action."""

_ALTERED_SOURCES: Final = {
    "topic": "DYNAMIC_TOPIC_CONFIG",
    "broker": "DYNAMIC_BROKER_CONFIG",
    "group": "DYNAMIC_GROUP_CONFIG",
}
"""The source of the configurations that are described without --all (`ConfigCommand.getResourceConfig` in Kafka)."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `configs` with its actions."""
    actions = add_subject(
        commands,
        "configs",
        "describe and alter configurations",
        "Describes and alters the configurations of topics, brokers and groups. A secret is never printed.",
    )
    parser = add_action(
        actions,
        common,
        "describe",
        run_describe,
        "Describe the configurations that were altered for a name. With --all also its defaults.",
        has_wide=True,
    )
    parser.add_argument("kind", choices=KINDS, help="what has the configurations")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="topics, node ids or groups; default: all of the kind"
    )
    parser.add_argument(
        "--keys", type=comma_separated, metavar="A,B", help="only these configurations, altered or not"
    )
    parser.add_argument("--all", action="store_true", help="also defaults")
    _add_alter(actions, common)


def _add_alter(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(
        actions,
        common,
        "alter",
        run_alter,
        "Alter single configurations. The others stay as they are. Each name is altered completely or not at all.",
    )
    parser.add_argument("kind", choices=KINDS, help="what has the configurations")
    parser.add_argument("names", nargs="+", metavar="NAME", help="topics, node ids or groups")
    for option, text in (
        ("set", "a new value; a value with commas is in brackets: NAME=[a,b]"),
        ("append", "elements to add to a list: NAME=[a,b]"),
        ("subtract", "elements to remove from a list: NAME=[a,b]"),
    ):
        parser.add_argument(
            f"--{option}",
            type=parse_configs,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"{text}; can be repeated",
        )
    parser.add_argument(
        "--delete",
        type=comma_separated,
        action="extend",
        default=[],
        metavar="NAME",
        help="a configuration that gets its default again; can be repeated",
    )
    parser.add_argument(
        "--set-file",
        type=Path,
        metavar="FILE",
        help="new values from a properties file: other users of this machine can see arguments, so put passwords there",
    )
    add_dry_run(parser)


# --- describe ---------------------------------------------------------------------------------------------------------


async def run_describe(options: argparse.Namespace) -> int:
    """Describe configurations."""
    report = Report(options)
    async with connected(options) as (cluster, admin):
        names = list(dict.fromkeys(options.names)) or await _all_names(cluster, admin, options.kind, report)
        described = await admin.describe_configs(options.kind, names, keys=options.keys)
    rows = [
        _row(options.kind, name, config)
        for name, configs in described.values_by_name.items()
        for _, config in sorted(configs.items())
        # with --keys the user has chosen: a default is an answer as well
        if options.all or options.keys or config.source == _ALTERED_SOURCES[options.kind]
    ]
    report.rows(_DESCRIBED, rows)
    report.errors(described.errors)
    return report.exit_code


async def _all_names(cluster: Cluster, admin: Admin, kind: str, report: Report) -> Sequence[str | int]:
    """Return the names of all topics, brokers or groups."""
    if kind == "topic":
        # with Kafka's own topics, whose configurations matter
        return [topic.name for topic in await admin.list_topics(internal=True)]
    if kind == "broker":
        # a node that has left the cluster would be a row with an error
        await cluster.refresh()
        return sorted(cluster.view.brokers)
    listed = await admin.list_groups()
    # the groups of a node that does not answer are missing
    report.node_errors(listed.errors)
    return [group.group_id for group in listed.groups]


def _row(kind: str, name: str, config: ConfigDescription) -> Row:
    return {
        "kind": kind,
        "name": name,
        "config": config.name,
        "value": config.value,
        "source": config.source,
        "sensitive": config.is_sensitive,
        "read_only": config.is_read_only,
        "synonyms": [f"{each.source}:{each.name}" for each in config.synonyms],
    }


# --- alter ------------------------------------------------------------------------------------------------------------


async def run_alter(options: argparse.Namespace) -> int:
    """Alter configurations."""
    changes = _changes(options)
    report = Report(options)
    names = list(dict.fromkeys(options.names))
    async with opened_admin(options) as admin:
        altered = await admin.alter_configs(
            options.kind, dict.fromkeys(names, changes), validate_only=options.dry_run
        )
    done = "valid" if options.dry_run else "altered"
    row = {"kind": options.kind}
    report.rows(_ALTERED, status_rows(names, altered.errors, done, lambda name: {**row, "name": name}))
    report.errors(altered.errors)
    return report.exit_code


def _changes(options: argparse.Namespace) -> ConfigChanges:
    """Return the changes of the arguments; exit with a usage error if there is none, or two of one name."""
    from asyncgroup.admin import ConfigChanges

    parser = options.usage
    # the file counts as one more --set, so a name in both is an error
    given = list(options.set)
    if options.set_file is not None:
        try:
            given.append(read_properties(options.set_file))
        except ConfigError as error:
            parser.error(f"--set-file: {error}")
    changes = ConfigChanges(
        set=merged_configs(given, "--set", parser),
        delete=options.delete,
        append=merged_configs(options.append, "--append", parser),
        subtract=merged_configs(options.subtract, "--subtract", parser),
    )
    names = [*changes.set, *changes.delete, *changes.append, *changes.subtract]
    if not names:
        parser.error("nothing to alter: give --set, --delete, --append, --subtract or --set-file")
    # the broker would refuse it with a text that names no option
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        parser.error(f"{twice} is given twice")
    return changes
