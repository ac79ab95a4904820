"""Which test compares each command of an operator with Kafka's own tool: a new command must be in this table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Final

from asyncgroup.cli.app import ADMINISTRATION, _parser

COMPARED: Final = {
    "topics list": "test_cli_beside_kafka::test_topics",
    "topics describe": "test_cli_beside_kafka::test_topics",
    "topics describe --with-overrides": "test_cli_beside_kafka::test_topics",
    "topics create": "test_cli_changes::test_created_and_deleted_topics",
    "topics delete": "test_cli_changes::test_created_and_deleted_topics",
    "topics add-partitions": "test_cli_changes::test_added_partitions",
    "topics delete-records": "test_cli_changes::test_deleted_records",
    "configs describe": "test_cli_beside_kafka::test_configurations",
    "configs alter": "test_cli_changes::test_altered_configurations_of_a_topic",
    "groups list": "test_cli_beside_kafka::test_groups",
    "groups describe": "test_cli_beside_kafka::test_groups",
    "groups describe --members": "test_cli_beside_kafka::test_groups",
    "groups lag": "test_cli_beside_kafka::test_groups",
    "groups lag --summary": "test_cli_beside_kafka::test_groups",
    "groups lag --watch": "test_cli_beside_kafka::test_groups",
    "groups reset": "test_cli_beside_kafka::test_a_plan_and_its_csv",
    "groups remove-members": "test_cli_group_changes::test_removed_members",
    "groups delete": "test_cli_group_changes::test_deleted_groups",
    "offsets list": "test_cli_group_changes::test_altered_and_deleted_offsets",
    "offsets alter": "test_cli_group_changes::test_altered_and_deleted_offsets",
    "offsets delete": "test_cli_group_changes::test_altered_and_deleted_offsets",
    "offsets earliest": "test_cli_beside_kafka::test_offsets_of_partitions",
    "offsets latest": "test_cli_beside_kafka::test_offsets_of_partitions",
    "offsets at": "test_cli_beside_kafka::test_offsets_of_partitions",
    "transactions list": "test_cli_beside_kafka::test_transactions",
    "transactions describe": "test_cli_beside_kafka::test_transactions",
    "transactions producers": "test_cli_beside_kafka::test_transactions",
    "transactions find-hanging": "test_cli_hanging::test_hanging_transactions",
    "transactions abort": "test_cli_hanging::test_hanging_transactions",
    "acls list": "test_cli_access::test_acls_beside_kafkas_tool",
    "acls create": "test_cli_access::test_acls_beside_kafkas_tool",
    "acls delete": "test_cli_access::test_acls_beside_kafkas_tool",
    "users list": "test_cli_access::test_users_beside_kafkas_tool",
    "users set": "test_cli_access::test_users_beside_kafkas_tool",
    "users delete": "test_cli_access::test_users_beside_kafkas_tool",
    "quotas list": "test_cli_quotas::test_quotas",
    "quotas alter": "test_cli_quotas::test_quotas",
    "cluster describe": "test_cli_cluster::test_brokers",
    "cluster quorum": "test_cli_beside_kafka::test_features_and_quorum",
    "cluster features": "test_cli_beside_kafka::test_features_and_quorum",
    "cluster set-features": "test_cli_cluster::test_levels_of_features",
    "cluster log-dirs": "test_cli_cluster::test_log_directories_of_nodes",
    "cluster log-dirs --replicas": "test_cli_beside_kafka::test_log_directories",
    "cluster alter-log-dirs": "test_admin_log_dirs::test_the_command_beside_kafkas_tool",
    "cluster elect-leaders": "test_cli_cluster::test_elections",
    "cluster reassignments": "test_cli_cluster::test_reassignments",
    "cluster reassign": "test_cli_cluster::test_reassignments",
    "cluster cancel-reassignments": "test_cli_cluster::test_reassignments",
    "health GROUP": "test_cli_beside_kafka::test_groups",
}
"""The test in this directory, for each command and each of its tables."""

WITHOUT_TOOL: Final = {
    "health URL": "asks a process of this package",
}
"""The commands for which Kafka has no tool, and why."""


def test_each_command_is_compared_with_kafkas_tool() -> None:
    tables = [f"{subject} {key}" for subject, each in ADMINISTRATION.items() for key in each.COLUMNS]
    assert sorted(tables) == sorted([*COMPARED, *WITHOUT_TOOL])
    # a command that has no table yet is missing as well
    assert set(actions(_parser())) == {
        " ".join(name.split()[:2]) for name in tables if not name.startswith("health ")
    }


def actions(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Return the commands of an operator, such as `topics list`."""
    for subject, each in subcommands(parser).items():
        if subject in ADMINISTRATION:
            for action in subcommands(each):
                yield f"{subject} {action}"


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {
        name: each
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, each in action.choices.items()
    }


def test_the_tests_of_the_table_exist() -> None:
    for place in set(COMPARED.values()):
        module, _, test = place.partition("::")
        assert callable(getattr(import_module(f"tests.real.{module}"), test)), place
