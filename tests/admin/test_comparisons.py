"""Which test on a real Kafka compares each call of Admin with another client's admin or with Kafka's tools. Fails for a call without one.

"Compared" means values, errors and partial results on the same cluster; the tests are in tests/real, on Kafka 4.3 and on 3.9.
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from asyncgroup.admin import (
    Admin,
    AdminAcls,
    AdminBrokers,
    AdminQuotas,
    AdminReplicas,
    AdminTransactions,
    AdminUsers,
)

REAL: Final = Path(__file__).parents[1] / "real"


class Compared(NamedTuple):
    """The tests that compare a call: `module::test`, the module without `test_admin_`."""

    newest: str
    """On Kafka 4.3."""
    old: str
    """On Kafka 3.9."""


TOPICS = Compared("topics_beside_others::test_topics", "topics_beside_others::test_topics_of_kafka_3_9")
RECORDS = Compared(
    "topics_beside_others::test_records_and_offsets",
    "topics_beside_others::test_records_and_offsets_of_kafka_3_9",
)
CONFIGS = Compared("configs_beside_others::test_topics", "configs_beside_others::test_topics_of_kafka_3_9")
GROUPS = Compared(
    "groups::test_a_group_from_its_first_commit_to_its_end", "groups::test_a_group_of_kafka_3_9"
)
RESETS = Compared("reset::test_random_resets", "reset::test_random_resets_on_an_old_kafka")
TRANSACTIONS = Compared(
    "transactions::test_all_is_as_others_see_it", "transactions::test_all_is_as_others_see_it_on_kafka_3_9"
)
CLUSTER = Compared(
    "brokers::test_the_cluster_is_as_others_see_it", "replicas_beside_others::test_the_cluster_of_kafka_3_9"
)
FEATURES = Compared(
    "replicas_beside_others::test_features", "replicas_beside_others::test_features_of_kafka_3_9"
)
REPLICAS = Compared(
    "replicas_beside_others::test_replicas", "replicas_beside_others::test_replicas_of_kafka_3_9"
)
ACLS = Compared(
    "access::test_acls_are_as_others_see_them", "access::test_acls_are_as_others_see_them_on_kafka_3_9"
)
USERS = Compared(
    "access::test_users_log_in_with_what_was_set", "access::test_users_log_in_with_what_was_set_on_kafka_3_9"
)
QUOTAS = Compared(
    "access::test_quotas_are_as_kafkas_tool_sees_them",
    "access::test_quotas_are_as_kafkas_tool_sees_them_on_kafka_3_9",
)

COMPARED: Final[dict[str, Compared]] = {
    "admin.list_topics": TOPICS,
    "admin.describe_topics": TOPICS,
    "admin.create_topics": TOPICS,
    "admin.delete_topics": TOPICS,
    "admin.create_partitions": TOPICS,
    "admin.delete_records": RECORDS,
    "admin.list_offsets": RECORDS,
    "admin.describe_configs": CONFIGS,
    "admin.alter_configs": CONFIGS,
    "admin.list_groups": GROUPS,
    "admin.describe_groups": GROUPS,
    "admin.delete_groups": GROUPS,
    "admin.list_group_offsets": GROUPS,
    "admin.alter_group_offsets": GROUPS,
    "admin.delete_group_offsets": GROUPS,
    "admin.lag": Compared("lag::test_the_lag_of_a_group", "lag::test_the_lag_of_a_group_of_kafka_3_9"),
    "admin.remove_members": Compared(
        "members::test_the_same_results_as_kafka_python",
        "members::test_the_same_results_as_kafka_python_on_kafka_3_9",
    ),
    "admin.plan_reset": RESETS,
    "admin.reset_offsets": RESETS,
    "transactions.list": TRANSACTIONS,
    "transactions.describe": TRANSACTIONS,
    "transactions.producers": TRANSACTIONS,
    "transactions.find_hanging": TRANSACTIONS,
    "transactions.abort": TRANSACTIONS,
    "transactions.abort_at": TRANSACTIONS,
    "brokers.describe": CLUSTER,
    "brokers.log_dirs": CLUSTER,
    "brokers.features": CLUSTER,
    "brokers.quorum": Compared(
        "brokers::test_the_quorum_is_as_kafkas_tool_sees_it",
        "replicas_beside_others::test_the_quorum_of_kafka_3_9",
    ),
    "brokers.update_features": FEATURES,
    "replicas.elect_leaders": REPLICAS,
    "replicas.list_reassignments": REPLICAS,
    "replicas.alter_reassignments": REPLICAS,
    "replicas.cancel_reassignments": REPLICAS,
    "replicas.alter_log_dirs": Compared(
        "log_dirs::test_a_replica_moves_between_directories",
        "log_dirs::test_a_replica_moves_between_directories_of_kafka_3_9",
    ),
    "acls.describe": ACLS,
    "acls.create": ACLS,
    "acls.delete": ACLS,
    "users.describe": USERS,
    "users.alter": USERS,
    "quotas.describe": QUOTAS,
    "quotas.alter": QUOTAS,
}
"""By the attribute of Admin and the call. Eligible leader replicas and configurations of brokers and groups have further tests in the modules named."""

PARTS: Final = {
    "admin": Admin,
    "transactions": AdminTransactions,
    "brokers": AdminBrokers,
    "replicas": AdminReplicas,
    "acls": AdminAcls,
    "users": AdminUsers,
    "quotas": AdminQuotas,
}


def calls(part: str, kind: type) -> set[str]:
    """Return the public coroutine functions of a class but `aclose`."""
    return {
        f"{part}.{name}"
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name != "aclose"
    }


def test_every_call_of_admin_is_compared() -> None:
    assert set().union(*(calls(part, kind) for part, kind in PARTS.items())) == COMPARED.keys()


def test_every_part_of_admin_is_listed() -> None:
    listed = {kind.__name__ for kind in PARTS.values()}
    annotations = re.findall(r"self\.(\w+): Final = (Admin\w+)\(", inspect.getsource(Admin))
    assert dict(annotations) == {part: kind.__name__ for part, kind in PARTS.items() if part != "admin"}
    assert len(annotations) == len(listed) - 1 > 0


@cache
def module(name: str) -> tuple[dict[str, list[str]], str]:
    """Return the fixtures of the tests of a module, and its text with that of the modules in tests/real that it imports from."""
    text = (REAL / f"test_admin_{name}.py").read_text(encoding="utf-8")
    fixtures = {
        node.name: [argument.arg for argument in node.args.args]
        for node in ast.parse(text).body
        if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    helpers = re.findall(r"^from tests\.real\.(\w+) import", text, re.MULTILINE)
    return fixtures, "\n".join(
        [text, *((REAL / f"{each}.py").read_text(encoding="utf-8") for each in helpers)]
    )


@pytest.mark.parametrize("call", COMPARED)
def test_the_tests_exist_and_make_the_call(call: str) -> None:
    for name, is_old in zip(COMPARED[call], (False, True), strict=True):
        path, _, test = name.partition("::")
        fixtures, text = module(path)
        assert test in fixtures
        assert any("39" in fixture for fixture in fixtures[test]) is is_old, f"{name} has {fixtures[test]}"
        assert f"{call}(" in text
