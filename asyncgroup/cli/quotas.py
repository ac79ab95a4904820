"""`asyncgroup quotas`: list and alter client quotas of users, client ids and addresses."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    add_dry_run,
    add_subject,
    comma_separated,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.tables import Column, Row
from asyncgroup.cli.topic_arguments import merged_configs, parse_configs

if TYPE_CHECKING:
    from asyncgroup.admin import ClientQuotaEntity, QuotaName
    from asyncgroup.cli.common import Commands

__all__ = ["COLUMNS", "add_parser"]

DEFAULT: Final = "<default>"
"""The name of the entity of all users, client ids or addresses that have no other quotas."""

_ENTITY: Final = (
    Column("user", is_name=True, can_shrink=True),
    Column("client_id", is_name=True, can_shrink=True),
    Column("ip", is_name=True),
)
_LISTED: Final = (*_ENTITY, Column("quota", is_name=True), Column("value", is_number=True))
_CHANGE: Final = (*_ENTITY, *STATUS_COLUMNS)
COLUMNS: Final = {"list": _LISTED, "alter": _CHANGE}
"""The columns of each action."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `quotas` with its actions."""
    actions = add_subject(
        commands, "quotas", "list and alter client quotas", "Lists and alters client quotas (KIP-546)."
    )
    parser = add_action(
        actions, common, "list", run_list, "List the quotas of the entities that have all these parts."
    )
    _add_entity(parser)
    parser.add_argument("--strict", action="store_true", help="without entities that have further parts")
    parser = add_action(
        actions,
        common,
        "alter",
        run_alter,
        "Set or delete quotas of a user, a client id, both together, or an address.",
    )
    _add_entity(parser)
    parser.add_argument(
        "--set",
        type=parse_configs,
        action="append",
        default=[],
        metavar="QUOTA=NUMBER",
        help="producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate, or for an address "
        "connection_creation_rate; can be repeated",
    )
    parser.add_argument(
        "--delete",
        type=comma_separated,
        action="extend",
        default=[],
        metavar="QUOTA",
        help="a quota that is removed; can be repeated",
    )
    add_dry_run(parser)


def _add_entity(parser: argparse.ArgumentParser) -> None:
    for option, what in (("--user", "a user"), ("--client-id", "a client id"), ("--ip", "an IP address")):
        parser.add_argument(option, metavar="NAME", help=f"{what}, or {DEFAULT}")


def _part(name: str | None) -> str | QuotaName | None:
    from asyncgroup.admin import QuotaName

    return QuotaName.DEFAULT if name == DEFAULT else name


def _shown(name: str | QuotaName | None) -> str | None:
    return name if name is None or isinstance(name, str) else name.value


def _entity_row(entity: ClientQuotaEntity) -> Row:
    return {"user": _shown(entity.user), "client_id": _shown(entity.client_id), "ip": _shown(entity.ip)}


async def run_list(options: argparse.Namespace) -> int:
    """List quotas."""
    report = Report(options)
    async with opened_admin(options) as admin:
        found = await admin.quotas.describe(
            user=_part(options.user),
            client_id=_part(options.client_id),
            ip=_part(options.ip),
            strict=options.strict,
        )
    rows = [
        {**_entity_row(entity), "quota": quota, "value": value}
        for entity, quotas in found.items()
        for quota, value in sorted(quotas.items())
    ]
    report.rows(_LISTED, rows)
    return report.exit_code


async def run_alter(options: argparse.Namespace) -> int:
    """Set or delete quotas of an entity."""
    from asyncgroup.admin import ClientQuotaEntity

    changes = _changes(options)
    if options.user is options.client_id is options.ip is None:
        options.usage.error("give --user, --client-id, both, or --ip")
    entity = ClientQuotaEntity(_part(options.user), _part(options.client_id), _part(options.ip))
    report = Report(options)
    async with opened_admin(options) as admin:
        altered = await admin.quotas.alter({entity: changes}, validate_only=options.dry_run)
    done = "valid" if options.dry_run else "altered"
    report.rows(_CHANGE, status_rows([entity], altered.errors, done, _entity_row))
    report.errors(altered.errors)
    return report.exit_code


def _changes(options: argparse.Namespace) -> dict[str, float | None]:
    """Return the new value of each quota, None for one to delete; exit with a usage error for wrong ones."""
    found: dict[str, float | None] = dict.fromkeys(options.delete)
    for name, value in merged_configs(options.set, "--set", options.usage).items():
        if name in found:
            options.usage.error(f"{name} is given twice")
        try:
            found[name] = float(value)
        except ValueError:
            options.usage.error(f"--set {name}={value}: not a number")
    if not found:
        options.usage.error("nothing to alter: give --set or --delete")
    return found
