"""Admin, client quotas: described by filters, altered one by one, and dry runs."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup import BrokerError, ConfigError, ErrorCode
from asyncgroup.admin import Admin, ClientQuotaEntity, QuotaName
from tests.admin.test_brokers import code
from tests.stories.virtual import VirtualEnvironment

ALICE = ClientQuotaEntity(user="alice")
PAIR = ClientQuotaEntity(user="alice", client_id="c")
EVERY_CLIENT = ClientQuotaEntity(client_id=QuotaName.DEFAULT)
ADDRESS = ClientQuotaEntity(ip="10.0.0.1")
RATE, PERCENTAGE = "producer_byte_rate", "request_percentage"


async def test_quotas_are_altered_and_described(admin: Admin, env: VirtualEnvironment) -> None:
    assert await admin.quotas.describe() == {}
    wanted: dict[ClientQuotaEntity, Any] = {
        ALICE: {RATE: 1000, PERCENTAGE: 12.5},
        PAIR: {RATE: 500},
        EVERY_CLIENT: {RATE: 100},
        ADDRESS: {"connection_creation_rate": 5},
    }
    assert set((await admin.quotas.alter(wanted)).raise_first()) == set(wanted)
    assert await admin.quotas.describe() == wanted
    assert list(await admin.quotas.describe(user="alice")) == [PAIR, ALICE]
    assert list(await admin.quotas.describe(user="alice", strict=True)) == [ALICE]
    assert list(await admin.quotas.describe(client_id=QuotaName.DEFAULT)) == [EVERY_CLIENT]
    assert set(await admin.quotas.describe(client_id=QuotaName.ANY)) == {EVERY_CLIENT, PAIR}
    assert list(await admin.quotas.describe(user="alice", client_id=QuotaName.ANY)) == [PAIR]
    assert list(await admin.quotas.describe(ip="10.0.0.1")) == [ADDRESS]
    (
        await admin.quotas.alter({ALICE: {RATE: None}, ADDRESS: {"connection_creation_rate": None}})
    ).raise_first()
    assert (await admin.quotas.describe(user="alice", strict=True)) == {ALICE: {PERCENTAGE: 12.5}}
    assert await admin.quotas.describe(ip=QuotaName.ANY) == {}


async def test_a_dry_run_changes_nothing_and_each_entity_has_its_error(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        wanted = {ALICE: {RATE: 1000.0}, PAIR: {"unknown": 1.0}}
        for validate_only in (True, False):
            found = await admin.quotas.alter(wanted, validate_only=validate_only)
            assert list(found.values_by_name) == [ALICE]
            assert code(found[PAIR]) == ErrorCode.INVALID_REQUEST
            assert str(found[PAIR]).startswith(
                "altering quotas of client-id 'c', user 'alice': INVALID_REQUEST (42)"
            )
            assert bool(await admin.quotas.describe()) is not validate_only


async def test_a_moved_controller_is_asked_again(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.faults.on("AlterClientQuotas").error("NOT_CONTROLLER")
    env.cluster.faults.on("AlterClientQuotas").disconnect(
        "after"
    )  # the same values again are the same values
    (await admin.quotas.alter({EVERY_CLIENT: {RATE: 1}})).raise_first()
    env.cluster.faults.on("DescribeClientQuotas").error("CLUSTER_AUTHORIZATION_FAILED")
    with pytest.raises(BrokerError, match="describing client quotas: CLUSTER_AUTHORIZATION_FAILED"):
        await admin.quotas.describe()


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    cases: list[tuple[str, Any]] = [
        ("a mapping", [ALICE]),
        ("ClientQuotaEntity", {"alice": {RATE: 1}}),
        ("a user, a client id", {ClientQuotaEntity(): {RATE: 1}}),
        ("ANY is for filters", {ClientQuotaEntity(user=QuotaName.ANY): {RATE: 1}}),
        ("user=''", {ClientQuotaEntity(user=""): {RATE: 1}}),
        ("one quota or more", {ALICE: {}}),
        ("Kafka's name", {ALICE: {"": 1}}),
        (f"{RATE}=0 .*above 0, or None", {ALICE: {RATE: 0}}),
        (f"{RATE}=inf", {ALICE: {RATE: float("inf")}}),
        (f"{RATE}='1'", {ALICE: {RATE: "1"}}),
    ]
    for text, wanted in cases:
        with pytest.raises(ConfigError, match=text):
            await admin.quotas.alter(wanted)
    with pytest.raises(ConfigError, match="ip=''"):
        await admin.quotas.describe(ip="")
    assert not env.cluster.history.of("AlterClientQuotas", "DescribeClientQuotas")
