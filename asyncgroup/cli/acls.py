"""`asyncgroup acls`: list, create and delete access control lists."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Final, TypeVar

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    add_subject,
    comma_separated,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.tables import Column, Row
from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    from asyncgroup.admin import AclBinding, AclBindingFilter, ResourcePattern
    from asyncgroup.cli.common import Commands
    from asyncgroup.errors import AsyncGroupError

__all__ = ["COLUMNS", "add_parser"]

T = TypeVar("T")

_ACL: Final = (
    Column("resource_type", is_name=True),
    Column("name", is_name=True, can_shrink=True),
    Column("pattern_type", is_name=True),
    Column("principal", is_name=True, can_shrink=True),
    Column("operation", is_name=True),
    Column("permission", is_name=True),
    Column("host", is_name=True),
)
_CHANGE: Final = (*_ACL, *STATUS_COLUMNS)
COLUMNS: Final = {"list": _ACL, "create": _CHANGE, "delete": _CHANGE}
"""The columns of each action."""

_CLUSTER: Final = "kafka-cluster"

_RESOURCES: Final = {
    "topic": "TOPIC",
    "group": "GROUP",
    "transactional_id": "TRANSACTIONAL_ID",
    "delegation_token": "DELEGATION_TOKEN",
    "user_principal": "USER",
}
"""Kafka's types of resources, by the options of `kafka-acls`."""

_NEW_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Where `kafka-acls` begins a word of an operation with a capital."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `acls` with its actions."""
    actions = add_subject(
        commands,
        "acls",
        "list, create and delete access control lists",
        "Lists, creates and deletes access control lists (ACLs). The brokers need an authorizer.",
    )
    parser = add_action(actions, common, "list", run_list, "List the ACLs that match all options, or all.")
    _add_filter(parser)
    parser = add_action(
        actions,
        common,
        "create",
        run_create,
        "Create ACLs: each principal may do each operation with each resource. One that exists is a success.",
    )
    _add_resources(parser, ("literal", "prefixed"), "literal")
    parser.add_argument(
        "--principal",
        action="append",
        required=True,
        metavar="TYPE:NAME",
        help="such as User:alice, or User:* for every user; can be repeated",
    )
    parser.add_argument(
        "--operation",
        type=_words,
        action="extend",
        required=True,
        metavar="A,B",
        help="Kafka's words, such as READ,DESCRIBE, or ALL; DescribeConfigs is DESCRIBE_CONFIGS",
    )
    parser.add_argument(
        "--host", action="append", metavar="ADDRESS", help="only from this address; default: any"
    )
    parser.add_argument(
        "--deny", action="store_true", help="deny the operations instead: a denial takes precedence"
    )
    parser = add_action(
        actions,
        common,
        "delete",
        run_delete,
        "Delete the ACLs that match all options. Prints them; nothing is changed without --execute.",
    )
    _add_filter(parser)
    parser.add_argument("--execute", action="store_true", help="delete them")


def _add_resources(parser: argparse.ArgumentParser, patterns: tuple[str, ...], default: str) -> None:
    for option, resource_type in _RESOURCES.items():
        kind = resource_type.lower().replace("_", " ")
        parser.add_argument(
            f"--{option.replace('_', '-')}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"a {kind}, or * for all; can be repeated",
        )
    parser.add_argument("--cluster", action="store_true", help="the cluster itself")
    parser.add_argument(
        "--pattern", choices=patterns, default=default, help="how names are meant (default: %(default)s)"
    )


def _add_filter(parser: argparse.ArgumentParser) -> None:
    _add_resources(parser, ("any", "literal", "prefixed", "match"), "any")
    parser.add_argument("--principal", metavar="TYPE:NAME", help="as it is in the ACL, such as User:alice")
    parser.add_argument("--operation", type=_word, default="ANY", metavar="WORD", help="as it is in the ACL")
    parser.add_argument("--host", metavar="ADDRESS", help="as it is in the ACL")
    parser.add_argument(
        "--permission", type=str.upper, choices=("ALLOW", "DENY", "ANY"), default="ANY", help="(default: ANY)"
    )


def _word(text: str) -> str:
    """Argument type: one of Kafka's words, as `DESCRIBE_CONFIGS` or as `DescribeConfigs` of `kafka-acls`."""
    return _NEW_WORD.sub("_", text).upper()


def _words(text: str) -> list[str]:
    return [_word(each) for each in comma_separated(text)]


# --- arguments --------------------------------------------------------------------------------------------------------


def _resources(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return type and name of each resource that was given."""
    found = [(kind, name) for option, kind in _RESOURCES.items() for name in getattr(options, option)]
    return [*found, ("CLUSTER", _CLUSTER)] if options.cluster else found


def _filters(options: argparse.Namespace) -> list[AclBindingFilter]:
    """Return a filter for each resource, or one for all; exit with a usage error for wrong words."""
    from asyncgroup.admin import AclBindingFilter
    from asyncgroup.admin.acl_values import filter_fields

    pattern = options.pattern.upper()
    if pattern == "MATCH" and not _resources(options):
        options.usage.error("--pattern match needs a resource, such as --topic orders")
    wanted: list[tuple[str, str | None]] = [*_resources(options)]
    filters = [
        AclBindingFilter(
            resource_type=kind,
            name=name,
            pattern_type=pattern,
            principal=options.principal,
            host=options.host,
            operation=options.operation,
            permission_type=options.permission,
        )
        for kind, name in wanted or [("ANY", None)]
    ]
    return _checked(options, filters, filter_fields)


def _bindings(options: argparse.Namespace) -> list[AclBinding]:
    """Return the ACLs to create; exit with a usage error without a resource, and for wrong words."""
    from asyncgroup.admin import AccessControlEntry, AclBinding
    from asyncgroup.admin.acl_values import acl_fields

    if not _resources(options):
        options.usage.error("give a resource, such as --topic orders or --cluster")
    permission = "DENY" if options.deny else "ALLOW"
    hosts = options.host or ["*"]
    entries = [
        AccessControlEntry(principal, operation, permission, host)
        for principal, operation, host in product(options.principal, options.operation, hosts)
    ]
    bindings = [AclBinding(pattern, entry) for pattern, entry in product(_patterns(options), entries)]
    return _checked(options, bindings, acl_fields)


def _checked(options: argparse.Namespace, values: list[T], check: Callable[[T], object]) -> list[T]:
    """Return the values; exit with a usage error for words that Kafka does not have."""
    try:
        for each in values:
            check(each)
    except ConfigError as error:
        options.usage.error(str(error))
    return values


def _patterns(options: argparse.Namespace) -> list[ResourcePattern]:
    from asyncgroup.admin import ResourcePattern

    return [
        # the cluster has one name, which is no prefix
        ResourcePattern(kind, name, "LITERAL" if kind == "CLUSTER" else options.pattern.upper())
        for kind, name in _resources(options)
    ]


# --- actions ----------------------------------------------------------------------------------------------------------


def _row(acl: AclBinding) -> Row:
    return {
        "resource_type": acl.pattern.resource_type,
        "name": acl.pattern.name,
        "pattern_type": acl.pattern.pattern_type,
        "principal": acl.entry.principal,
        "operation": acl.entry.operation,
        "permission": acl.entry.permission_type,
        "host": acl.entry.host,
    }


async def run_list(options: argparse.Namespace) -> int:
    """List ACLs."""
    filters = _filters(options)
    report = Report(options)
    async with opened_admin(options) as admin:
        found = [acl for each in filters for acl in await admin.acls.describe(each)]
    report.rows(_ACL, map(_row, dict.fromkeys(found)))
    return report.exit_code


async def run_create(options: argparse.Namespace) -> int:
    """Create ACLs."""
    wanted = list(dict.fromkeys(_bindings(options)))
    report = Report(options)
    async with opened_admin(options) as admin:
        created = await admin.acls.create(wanted)
    report.rows(_CHANGE, status_rows(wanted, created.errors, "created", _row))
    report.errors(created.errors)
    return report.exit_code


async def run_delete(options: argparse.Namespace) -> int:
    """Print the ACLs that match, and delete them with --execute."""
    from asyncgroup.admin import AclBindingFilter

    filters = _filters(options)
    if filters == [AclBindingFilter()]:
        options.usage.error("give at least one option: nothing deletes all ACLs at once")
    report = Report(options)
    async with opened_admin(options) as admin:
        found = list(dict.fromkeys([acl for each in filters for acl in await admin.acls.describe(each)]))
        errors: dict[AclBinding, AsyncGroupError] = {}
        if options.execute and found:
            # what was printed is what is deleted, not an ACL that is created in between
            exactly = {AclBindingFilter.exactly(acl): acl for acl in found}
            deleted = await admin.acls.delete(exactly)
            errors = {exactly[each]: error for each, error in deleted.errors.items()}
            for result in deleted.values_by_name.values():
                errors.update(result.errors)
    report.rows(_CHANGE, status_rows(found, errors, "deleted" if options.execute else "planned", _row))
    report.errors(errors)
    if not found:
        report.note("no ACL matches")
    elif not options.execute:
        report.note("nothing is changed; --execute deletes them")
    return report.exit_code
