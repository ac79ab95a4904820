"""Admin: the face of all administrative requests. Each call is a function of the file about its subject."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Self

from asyncgroup.admin import (
    configs,
    group_offsets,
    groups,
    lag,
    lag_values,
    list_offsets,
    members as group_members,
    reset,
    reset_target,
    topic_changes,
    topics,
)
from asyncgroup.admin.acls import AdminAcls
from asyncgroup.admin.arguments import several
from asyncgroup.admin.brokers import AdminBrokers
from asyncgroup.admin.denied import needs
from asyncgroup.admin.quotas import AdminQuotas
from asyncgroup.admin.replicas import AdminReplicas
from asyncgroup.admin.reset_plan import ResetPlan
from asyncgroup.admin.results import AdminResults
from asyncgroup.admin.transactions import AdminTransactions
from asyncgroup.admin.users import AdminUsers
from asyncgroup.checks import (
    check_duration_or_zero,
    check_group_id,
    check_partitions,
    check_topic,
    wrong_type,
)
from asyncgroup.cluster import Cluster, as_cluster
from asyncgroup.cluster.bootstrap import BootstrapServers
from asyncgroup.cluster.requests import groups as group_requests
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.list_offsets import Isolation
from asyncgroup.config import ClientConfig
from asyncgroup.model import TopicPartition, now_ms
from asyncgroup.named_arguments import ClientArguments
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.topic_partition import Partitions

__all__ = ["Admin"]

API_TIMEOUT: Final = 60.0
"""Seconds that a call may take, as Java's `default.api.timeout.ms`."""


class Admin(ClientArguments):
    """Administers a Kafka cluster.

        async with Admin("localhost:9092") as admin:
            print(await admin.list_topics())

    Calls for several names take one as well, and return `AdminResults`. Requests to a controller or coordinator that has moved, that does not answer or
    that is loading are repeated (with `timeout=0` not at all). A call with all its requests takes at most `timeout` seconds; then the names that
    are left have their last error. A call to several nodes or leaders waits no longer than 5 s for each. `hooks` are those of a new Cluster.

    Raises ConfigError for malformed addresses and a negative timeout; entering raises NoBrokersError if no broker
    answers.
    """

    _CONFIG = "ClientConfig"

    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        config: ClientConfig | None = None,
        *,
        timeout: float = API_TIMEOUT,
        hooks: Iterable[object] = (),
    ) -> None:
        check_duration_or_zero("timeout", timeout)
        self._cluster, self._owns_cluster = as_cluster(bootstrap_servers, config or ClientConfig(), hooks)
        self._client = self._cluster._inner
        self._timeout = timeout
        self.acls: Final = AdminAcls(self._client, self._budget)
        """Access control lists."""
        self.brokers: Final = AdminBrokers(self._client, self._budget)
        """The cluster's nodes, their log directories, the metadata quorum, and features."""
        self.quotas: Final = AdminQuotas(self._client, self._budget)
        """Client quotas."""
        self.replicas: Final = AdminReplicas(self._client, self._budget)
        """Elections of leaders, and reassignments of partitions."""
        self.transactions: Final = AdminTransactions(self._client, self._budget)
        """Transactions, producers and hanging transactions."""
        self.users: Final = AdminUsers(self._client, self._budget)
        """Users with SCRAM credentials."""

    def __repr__(self) -> str:
        return f"<Admin of {self._cluster!r}>"

    async def __aenter__(self) -> Self:
        if self._owns_cluster:
            await self._cluster.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, unless they belong to a Cluster that was given; requests in flight fail with ConnectionLost."""
        if self._owns_cluster:
            await self._cluster.aclose()

    def _budget(self) -> RequestBudget:
        """Return the limits of a call of several requests, which begins now."""
        return RequestBudget(self._client, self._timeout)

    def _retry(self) -> RetryLoop:
        """Return the limits of a call of one request after the other, which begins now."""
        return self._budget().retry()

    # --- topics ---------------------------------------------------------------------------------------------------------

    async def list_topics(self, *, internal: bool = False) -> tuple[topics.TopicListing, ...]:
        """Return the topics that the user may describe, sorted by name; with `internal` also Kafka's own."""
        return await self._budget().limit(topics.list_topics(self._client, internal=internal))

    @needs("DESCRIBE on the topic")
    async def describe_topics(self, names: Iterable[str]) -> AdminResults[str, topics.TopicDescription]:
        """Return each topic with its partitions; UNKNOWN_TOPIC_OR_PARTITION for one that does not exist.

        In pages of 2,000 partitions, with the eligible leader replicas, from Kafka 3.8 on (KIP-966). Raises ConfigError for an
        invalid name, NoBrokersError.
        """
        checked = [check_topic(name) for name in several("names", names)]
        return AdminResults(await topics.describe_topics(self._client, checked, self._budget()))

    @needs("CREATE on the topic or on the cluster")
    async def create_topics(
        self, wanted: Mapping[str, topic_changes.NewTopic | int | None], *, validate_only: bool = False
    ) -> AdminResults[str, None]:
        """Create topics: for each name a NewTopic, or the number of its partitions (None: the broker's default).

        Returns when every broker that answers knows the topics with a leader for each partition. The error of a topic that exists
        is TOPIC_ALREADY_EXISTS, except after a request of this call without a response, which has created it (not one with other
        partitions or replicas). With `validate_only` the controller only checks the request. Raises ConfigError for invalid names and
        values.
        """
        checked = topic_changes.checked_new_topics(wanted)
        return AdminResults(
            await topic_changes.create_topics(
                self._client, checked, self._retry(), validate_only=validate_only
            )
        )

    @needs("DELETE on the topic")
    async def delete_topics(self, names: Iterable[str]) -> AdminResults[str, None]:
        """Delete topics with all their records. Raises ConfigError for an invalid name, NoBrokersError."""
        checked = [check_topic(name) for name in several("names", names)]
        return AdminResults(await topic_changes.delete_topics(self._client, checked, self._retry()))

    @needs("ALTER on the topic")
    async def create_partitions(
        self, wanted: Mapping[str, topic_changes.NewPartitions | int], *, validate_only: bool = False
    ) -> AdminResults[str, None]:
        """Add partitions to topics: for each name the number of partitions afterwards, or NewPartitions.

        Keys go to other partitions then. Returns as `create_topics`; with `validate_only` the controller only checks the request. The
        error of a topic that has as many already is INVALID_PARTITIONS. Raises ConfigError for invalid names and values.
        """
        checked = topic_changes.checked_new_partitions(wanted)
        return AdminResults(
            await topic_changes.create_partitions(
                self._client, checked, self._retry(), validate_only=validate_only
            )
        )

    @needs("DELETE on the topic")
    async def delete_records(
        self, before: Mapping[TopicPartition, int | None]
    ) -> AdminResults[TopicPartition, int]:
        """Delete the records before these offsets (None: all that consumers can read); return the new start of each log.

        The error of an offset after the high watermark is OFFSET_OUT_OF_RANGE. Raises ConfigError for invalid
        partitions and offsets, NoBrokersError.
        """
        checked = topic_changes.checked_offsets(before)
        return AdminResults(await topic_changes.delete_records(self._client, checked, self._retry()))

    @needs("DESCRIBE on the topic")
    async def list_offsets(
        self,
        partitions: Mapping[TopicPartition, list_offsets.OffsetSpec],
        *,
        isolation_level: Isolation = "read_uncommitted",
    ) -> AdminResults[TopicPartition, list_offsets.ListOffsetsResultInfo]:
        """Return an offset of each partition: `earliest`, `latest`, at a time, or another `OffsetSpec`.

        With `read_committed` the log ends at the last stable offset, before the first open transaction. A leader that is too old
        for a spec has UnsupportedVersionError for it. Raises ConfigError for invalid partitions and specs, NoBrokersError.
        """
        wanted = list_offsets.checked_specs(partitions)
        isolation = list_offsets.check_isolation(isolation_level)
        return AdminResults(await list_offsets.list_offsets(self._client, wanted, isolation, self._budget()))

    # --- configurations -------------------------------------------------------------------------------------------------

    @needs("DESCRIBE_CONFIGS on the topic or group, for a broker on the cluster")
    async def describe_configs(
        self,
        kind: configs.Kind,
        names: str | int | Iterable[str | int],
        *,
        keys: Collection[str] | None = None,
    ) -> AdminResults[str, dict[str, configs.ConfigDescription]]:
        """Return the configurations of each "topic", "broker" (by node id) or "group" by name: these keys, or all.

        A broker is asked itself. Raises ConfigError for an unknown kind and for invalid names.
        """
        checked = configs.checked_resources(kind, names)
        wanted = None if keys is None else list(several("keys", keys))
        return AdminResults(await configs.describe_configs(self._client, checked, wanted, self._budget()))

    @needs("ALTER_CONFIGS on the topic or group, for a broker on the cluster")
    async def alter_configs(
        self,
        kind: configs.Kind,
        wanted: Mapping[str, configs.ConfigChanges] | Mapping[int, configs.ConfigChanges],
        *,
        validate_only: bool = False,
    ) -> AdminResults[str, None]:
        """Change single configurations of each "topic", "broker" (by node id) or "group"; the others stay as they are.

        Each is changed completely or not at all; with `validate_only` the brokers only check the changes. Raises ConfigError
        for an unknown kind, and for invalid names and changes.
        """
        checked = configs.checked_changes(kind, wanted)
        return AdminResults(
            await configs.alter_configs(self._client, checked, self._retry(), validate_only=validate_only)
        )

    # --- groups ---------------------------------------------------------------------------------------------------------

    @needs("DESCRIBE on the cluster or on the groups")
    async def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> groups.GroupsListed:
        """Return the groups of all nodes that answer, and the errors of the others; `states` and `types` by Kafka's names.

        Each group is listed once: of two nodes, while its coordinator moves, the one where it is alive counts. Raises ConfigError
        for a state or type that Kafka does not have.
        """
        wanted_states, wanted_types = groups.checked_states(states), groups.checked_types(types)
        return await groups.list_groups(
            self._client, states=wanted_states, types=wanted_types, budget=self._budget()
        )

    @needs("DESCRIBE on the group")
    async def describe_groups(self, group_ids: Iterable[str]) -> AdminResults[str, groups.GroupDescription]:
        """Return each group with its members, of the classic and of the consumer protocol.

        GROUP_ID_NOT_FOUND for a group that does not exist. Raises ConfigError for an invalid id.
        """
        wanted = [check_group_id(each) for each in several("group_ids", group_ids)]
        return AdminResults(await groups.describe_groups(self._client, wanted, self._budget()))

    @needs("DESCRIBE on the group and on its topics")
    async def lag(
        self,
        group_ids: Iterable[str],
        *,
        isolation_level: Isolation = "read_uncommitted",
        require_stable: bool = False,
    ) -> AdminResults[str, lag_values.GroupLag]:
        """Return how far each classic or consumer group is behind the ends of its partitions, in one call.

        A log ends at its high watermark, as in Kafka's tool; for a group whose members read committed records, `read_committed` ends it at
        the last stable offset, up to which they can read. `require_stable` is that of `list_group_offsets`. A partition whose leader
        does not answer has its error, and the others their lag. GROUP_ID_NOT_FOUND for a group that does not exist, and
        for a share or streams group, which it names. Raises ConfigError for an invalid id, NoBrokersError.
        """
        wanted = [check_group_id(each) for each in several("group_ids", group_ids)]
        isolation = list_offsets.check_isolation(isolation_level)
        found = await lag.lag_of_groups(
            self._client, wanted, isolation, self._budget(), require_stable=require_stable
        )
        return AdminResults(found)

    @needs("DELETE on the group")
    async def delete_groups(self, group_ids: Iterable[str]) -> AdminResults[str, None]:
        """Delete groups with their offsets; NON_EMPTY_GROUP for one with members. Raises ConfigError for an invalid id."""
        wanted = [check_group_id(each) for each in several("group_ids", group_ids)]
        return AdminResults(await group_requests.delete_groups(self._client, wanted, retry=self._retry()))

    @needs("READ on the group")
    async def remove_members(
        self, group_id: str, members: group_members.MembersToRemove, *, reason: str = ""
    ) -> AdminResults[group_members.MemberToRemove, None]:
        """Remove members from a group, by member id or instance id (KIP-345), or "all" that it has.

        UNKNOWN_MEMBER_ID for one that the group does not have; brokers before Kafka 4.0 have the same error for members of the
        consumer protocol (KAFKA-18188). A member that still runs joins again: stop it before, or remove static members that have
        stopped. `reason` is written to the coordinator's log, its first 255 characters (KIP-800). Raises ConfigError for
        invalid arguments, and for "all" the error of the group, such as GROUP_ID_NOT_FOUND.
        """
        wanted, text = group_members.checked_members(members), group_members.checked_reason(reason)
        return AdminResults(
            await group_members.remove_members(
                self._client, check_group_id(group_id), wanted, text, self._budget()
            )
        )

    @needs("DESCRIBE on the group")
    async def list_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> AdminResults[TopicPartition, group_offsets.GroupOffset]:
        """Return the offsets that the group has committed; none for a group that does not exist.

        With `require_stable` a partition that an open transaction may still change has UNSTABLE_OFFSET_COMMIT. Raises
        ConfigError for an invalid id, and the error of the group, such as GROUP_AUTHORIZATION_FAILED.
        """
        found = await group_offsets.list_group_offsets(
            self._client, check_group_id(group_id), self._retry(), require_stable=require_stable
        )
        return AdminResults(found)

    @needs("READ on the group and on the topics")
    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | group_offsets.GroupOffset]
    ) -> AdminResults[TopicPartition, None]:
        """Commit offsets for a group without members; an int has no metadata. A group that does not exist is created.

        UNKNOWN_MEMBER_ID for all partitions of a group with members. Raises ConfigError for an invalid id, partition or
        offset.
        """
        wanted = group_offsets.checked_offsets(offsets)
        return AdminResults(
            await group_offsets.alter_group_offsets(
                self._client, check_group_id(group_id), wanted, self._retry()
            )
        )

    @needs("DELETE on the group and READ on the topics")
    async def delete_group_offsets(
        self, group_id: str, partitions: Partitions
    ) -> AdminResults[TopicPartition, None]:
        """Delete committed offsets; GROUP_SUBSCRIBED_TO_TOPIC for the topics that members subscribe to.

        Raises ConfigError for an invalid id or partition.
        """
        wanted = check_partitions(partitions)
        return AdminResults(
            await group_offsets.delete_group_offsets(
                self._client, check_group_id(group_id), wanted, self._retry()
            )
        )

    # --- reset ----------------------------------------------------------------------------------------------------------

    @needs("DESCRIBE on the group and on the topics")
    async def plan_reset(
        self,
        group_id: str,
        target: reset_target.ResetTarget,
        *,
        topics: Iterable[str] | None = None,
        partitions: Partitions | None = None,
    ) -> ResetPlan:
        """Return new offsets for a group without members; nothing is changed. `reset_offsets` commits the plan.

        The target is "earliest", "latest", "current", an offset, `ShiftBy(n)`, a datetime with a time zone (the first record at or
        after it), a timedelta (the first record not older than that), or an offset for each partition. The scope is all partitions of
        `topics` and the given `partitions`; with neither, all partitions with a committed offset. The rules are those of
        `kafka-consumer-groups --reset-offsets`: an offset outside of the log is moved into it, "current" without a commit and a
        time after the last record mean the log's end. The reset clears the metadata of the commits; the plan's
        partitions and `warnings` say where that is an ack window of a work queue.

        Raises ResetRefused for a group with members, for topics and partitions that do not exist or have no leader,
        and for a shift without a commit; ConfigError for invalid arguments; the error of the group or of a commit.
        """
        parsed = reset_target.parse_target(target, now_ms)
        scope = reset_target.checked_scope(parsed, topics, partitions)
        return await reset.plan_reset(self._client, check_group_id(group_id), parsed, scope, self._budget())

    @needs("READ on the group and on the topics")
    async def reset_offsets(self, plan: ResetPlan) -> AdminResults[TopicPartition, int]:
        """Commit a plan of `plan_reset`; return the new offset of each partition. A group that does not exist is created.

        UNKNOWN_MEMBER_ID for all partitions, with the group's state and members, if a member joined after the plan was made;
        INCONSISTENT_TOPIC_ID for the partitions of a topic that was recreated since. Raises NoBrokersError.
        """
        if not isinstance(plan, ResetPlan):
            raise wrong_type("plan", plan, "a ResetPlan, as plan_reset returns it")
        return AdminResults(await reset.commit_plan(self._client, plan, self._budget()))
