"""Remove members from a group: those that are named, or all that it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

from asyncgroup.admin.groups import describe_groups
from asyncgroup.checks import TEXT, is_legal_name, wrong_type
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import groups as requests
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.groups import MemberToRemove
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import ConfigError

__all__ = ["MemberToRemove", "MembersToRemove", "checked_members", "checked_reason", "remove_members"]

MembersToRemove: TypeAlias = Iterable[MemberToRemove] | Literal["all"]

DEFAULT_REASON: Final = "member was removed by an admin"
"""As `DEFAULT_LEAVE_GROUP_REASON` of `KafkaAdminClient`."""
MAX_REASON: Final = 255
"""Characters of a reason that are sent, as `JoinGroupRequest.maybeTruncateReason` in Kafka (KIP-800)."""


def checked_members(members: Any) -> list[MemberToRemove] | None:
    """Return the members, each once; None for "all". Raises ConfigError for other values."""
    rule = 'several MemberToRemove, or "all"'
    if isinstance(members, str | MemberToRemove) or not isinstance(members, Iterable):
        if members == "all":
            return None
        raise ConfigError("members", members, rule)
    return list(dict.fromkeys(_checked(each, rule) for each in members))


def _checked(member: object, rule: str) -> MemberToRemove:
    if not isinstance(member, MemberToRemove):
        raise wrong_type("members", member, rule)
    if not isinstance(member.member_id, str):
        raise wrong_type("member_id", member.member_id, TEXT[1])
    if not TEXT[0](member.member_id):
        raise ConfigError("member_id", f"{member.member_id[:20]}…", TEXT[1])
    instance = member.group_instance_id
    if instance is not None and not (isinstance(instance, str) and is_legal_name(instance)):
        raise ConfigError("group_instance_id", instance, "1 to 249 of the characters a-z A-Z 0-9 . _ -")
    if not member.member_id and instance is None:
        raise ConfigError("members", member, "a member id, or a group instance id")
    return member


def checked_reason(reason: Any) -> str:
    """Return what is sent of the reason. Raises ConfigError unless it is a string."""
    if not TEXT[0](reason):
        raise ConfigError("reason", reason, TEXT[1])
    return reason[:MAX_REASON] or DEFAULT_REASON


async def remove_members(
    cluster: ClusterClient,
    group_id: str,
    members: list[MemberToRemove] | None,
    reason: str,
    budget: RequestBudget,
) -> Results[MemberToRemove, None]:
    """Remove these members, or all that the group has (None). Raises the error of a group that cannot be described."""
    if members is None:
        described = (await describe_groups(cluster, [group_id], budget)).require()[group_id]
        # as in Java: a static member that is replaced after the description is removed as well
        members = [
            MemberToRemove(each.member_id)
            if each.group_instance_id is None
            else MemberToRemove(group_instance_id=each.group_instance_id)
            for each in described.members
        ]
    return await requests.remove_members(cluster, group_id, members, reason=reason, retry=budget.retry())
