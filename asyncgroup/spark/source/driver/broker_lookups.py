"""The driver's broker requests: the partitions of a query, and their offsets, with retries.

Spark's own source uses an admin client for that (`KafkaOffsetReaderAdmin`, `ConsumerStrategy`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias
from uuid import UUID

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import TopicInfo
from asyncgroup.cluster.requests.list_offsets import may_be_listed_later
from asyncgroup.consumer.list_offsets import ListOffsetsResult
from asyncgroup.errors import BrokerError
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import GROUP_LANE
from asyncgroup.offsets.fetch_offsets import fetch_offsets_and_ids
from asyncgroup.spark.source.driver.leader_requests import LeaderRequests
from asyncgroup.spark.source.driver.recreated_topics import Commits, same_topic_offsets
from asyncgroup.spark.source.driver.retry_policy import RetryPolicy, offset_attempts
from asyncgroup.spark.source.driver.unavailable_partitions import UnavailablePartitions
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.options.patterns import java_pattern
from asyncgroup.spark.source.options.settings import Assign, ReadSettings, Subscribe, SubscribePattern

__all__ = ["ONLY_LOOKUP_TIMEOUT", "Assigned", "BrokerLookups"]

Offsets: TypeAlias = dict[TopicPartition, int]

Assigned: TypeAlias = dict[TopicPartition, UUID]
"""Partitions, each with its topic id (nil with brokers that have no topic ids)."""

METADATA_MAX_AGE: Final = 1.0
"""Seconds for which metadata is reused without a request: an idle query asks for offsets many times a second."""

CHEAP_REFRESH_SECONDS: Final = 0.05
"""If a metadata request takes at most these seconds, metadata is refreshed for each batch: recreated topics are detected
at once."""

METADATA_AGE_FACTOR: Final = 50
"""Metadata is also reused for this multiple of its request's duration: with thousands of topics, requests take at most
2 % of the time."""

UNAVAILABLE_TIMEOUT: Final = 2.0
"""Seconds for which the query waits for the offset of a partition that has no leader, or whose leader does not answer;
afterwards it continues with the other partitions. Once per outage: later lookups do not wait for it."""

ONLY_LOOKUP_TIMEOUT: Final = 30.0
"""The same if a run looks up its ends only once: its next run may be a day later, and a failover takes about ten seconds."""

UNAVAILABLE_METADATA_AGE: Final = 0.25
"""Seconds for which metadata is reused while such a partition is unavailable."""

UNAVAILABLE_METADATA_AGE_FACTOR: Final = 10
"""Metadata is then also reused for this multiple of its request's duration: it may be unavailable for hours."""


class BrokerLookups:
    """The broker requests of one query. Call `open` first and `aclose` last.

    Retriable errors are retried as `RetryPolicy` describes. Raises BrokerError, AuthenticationError, ProtocolError, or a
    SourceError with a code if brokers or topics cannot be found.
    """

    def __init__(self, settings: ReadSettings, rng: random.Random | None = None) -> None:
        self._settings = settings
        self._strategy = settings.strategy
        self.retries = RetryPolicy(settings, rng)
        pattern = settings.strategy.pattern if isinstance(settings.strategy, SubscribePattern) else None
        self._pattern = None if pattern is None else java_pattern(pattern)
        self._cluster: ClusterClient | None = None
        self._requests: LeaderRequests | None = None
        self._assigned: Assigned = {}
        self._metadata_valid_until = float("-inf")
        self._refresh_seconds = 0.0
        """Duration of the last metadata request."""
        self._known_topics: set[str] = set()
        """Topics that have existed: a query cannot start without its topics, but continues if one is deleted."""
        self._unavailable = UnavailablePartitions()

    @property
    def cluster(self) -> ClusterClient:
        """The cluster; only after `open`."""
        assert self._cluster is not None
        return self._cluster

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect. Raises ASYNCGROUP_BROKERS_UNREACHABLE if no broker answers, AuthenticationError."""
        await self.retries.retry_until_timeout("Connecting", self._connect, is_cut=True)

    async def _connect(self) -> None:
        # a query must not create topics; Java's admin client, which Spark's source uses, does not either
        given, limit = self._settings.config, self._settings.api_timeout
        config = replace(
            given,
            allow_auto_topic_creation=False,
            metadata_full=self._pattern is not None,
            # no single request takes longer than all its attempts may
            request_timeout=min(given.request_timeout, limit),
            connect_timeout=min(given.connect_timeout, limit),
            fetch_max_wait=min(given.fetch_max_wait, limit / 2),
        )
        cluster = ClusterClient(self._settings.bootstrap_servers, config)
        cluster.track(self._topics())
        await cluster.__aenter__()
        self._cluster = cluster
        self._requests = LeaderRequests(cluster, config.isolation_level)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._requests is not None:
            await self._requests.aclose()
        if self._cluster is not None:
            await self._cluster.aclose()

    def _topics(self) -> list[str]:
        """Return the topics named by the strategy; none for a pattern."""
        if isinstance(self._strategy, Subscribe):
            return list(self._strategy.topics)
        if isinstance(self._strategy, Assign):
            return sorted({tp.topic for tp in self._strategy.partitions})
        return []

    # --- partitions ---------------------------------------------------------------------------------------------

    @property
    def topic_ids(self) -> Assigned:
        """The partitions and topic ids of the last metadata response."""
        return self._assigned

    def mark_topics_known(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the topics of these partitions have existed: it is no error of the options if they are missing."""
        self._known_topics.update(tp.topic for tp in partitions)

    async def assigned(self, expected: Collection[TopicPartition] = ()) -> Assigned:
        """Return the partitions to read; with a metadata request if the last one is too old.

        Deleted topics are left out; topics that have never existed raise ASYNCGROUP_TOPICS_NOT_FOUND. If some of the
        `expected` partitions are missing, looks again, as often as for offsets: a broker that has just started may not
        know them yet.
        """
        found, retry = await self._assigned_now(refresh=False), offset_attempts(self._settings)
        while not all(tp in found for tp in expected) and retry.failed():
            await retry.wait()
            found = await self._assigned_now(refresh=True)
        return found

    async def _assigned_now(self, *, refresh: bool) -> Assigned:
        return await self.retries.retry_attempts(
            "Finding partitions", lambda retrying: self._find_assigned(refresh or retrying)
        )

    async def _find_assigned(self, refresh: bool, *, require_topics: bool = True) -> Assigned:
        time = asyncio.get_running_loop().time
        if refresh or time() >= self._metadata_valid_until:
            started_at = time()
            await self.cluster.refresh()
            self._assigned = self._select_partitions(self.cluster.view.topics)
            self._unavailable.retain(self._assigned)
            self._refresh_seconds = time() - started_at
            self._metadata_valid_until = time() + max(
                METADATA_MAX_AGE, METADATA_AGE_FACTOR * self._refresh_seconds
            )
        if require_topics and (never := set(self._topics()) - self._known_topics):
            raise SourceError("ASYNCGROUP_TOPICS_NOT_FOUND", topics=never)
        return self._assigned

    def _select_partitions(self, topics: Mapping[str, TopicInfo]) -> Assigned:
        """Return the partitions that the strategy selects; raise BrokerError for a topic with an error.

        A topic with an error that may pass keeps its known partitions, if it has some: they have no leaders then.
        """
        if self._pattern is not None:
            find = self._pattern.search
            names = [name for name, topic in topics.items() if not topic.is_internal and find(name)]
        else:
            names = [name for name in self._topics() if name in topics]
        kept: Assigned = {}
        for name in names:
            if code := topics[name].error_code:
                error = BrokerError(code, f"topic {name!r}")
                known = {tp: topic_id for tp, topic_id in self._assigned.items() if tp.topic == name}
                if not known or not may_be_listed_later(error):
                    raise error
                kept |= known
        self._known_topics.update(names)
        wanted = set(self._strategy.partitions) if isinstance(self._strategy, Assign) else None
        found = [(TopicPartition(n, p), topics[n].topic_id) for n in sorted(names) for p in topics[n].numbers]
        return kept | {tp: topic_id for tp, topic_id in found if wanted is None or tp in wanted}

    # --- offsets ------------------------------------------------------------------------------------------------

    async def list_all_offsets(
        self,
        spec: int,
        *,
        refresh: bool = False,
        require_topics: bool = True,
        last_known: Mapping[TopicPartition, int] | None = None,
        wait: float | None = None,
    ) -> Offsets:
        """Return the offsets at `EARLIEST` or `LATEST` of all partitions to read; refresh the metadata first if `refresh`.

        Without `require_topics`, topics that have never existed are left out. A partition that has been unavailable for `wait`
        seconds (`UNAVAILABLE_TIMEOUT`) gets its offset in `last_known`, and is left out if it has none there.
        """

        async def find(retrying: bool) -> Offsets:
            partitions = await self._find_assigned(refresh or retrying, require_topics=require_topics)
            found = await self._list_available(dict.fromkeys(partitions, spec), wait)
            # offsets are requested by topic name: those of a recreated topic look like new records of the old one
            has_new_records = last_known is not None and any(
                offset > last_known.get(tp, offset) for tp, offset in found.items()
            )
            if has_new_records and self._refresh_seconds <= CHEAP_REFRESH_SECONDS:
                await self._find_assigned(True, require_topics=require_topics)
            known = last_known or {}
            return found | {tp: known[tp] for tp in partitions if tp not in found and tp in known}

        return await self._retry_lookups(find)

    async def list_available_offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """As `list_offsets`, without partitions that have been unavailable for `UNAVAILABLE_TIMEOUT`."""

        async def find(retrying: bool) -> Offsets:
            partitions = await self._find_assigned(retrying)
            return await self._list_available({tp: spec for tp, spec in wanted.items() if tp in partitions})

        return await self._retry_lookups(find) if wanted else {}

    async def list_offsets(self, wanted: Mapping[TopicPartition, int], *, or_end: bool = True) -> Offsets:
        """Return the offset at `EARLIEST`, `LATEST` or a timestamp (ms) of each partition; without deleted partitions.

        That of a timestamp is the first one with this timestamp or a later one; if there is none, it is the end of the
        log, or -1 without `or_end`. Waits for unavailable partitions, up to the limits of `RetryPolicy`.
        """

        async def find(retrying: bool) -> Offsets:
            partitions = await self._find_assigned(retrying)
            existing = {tp: spec for tp, spec in wanted.items() if tp in partitions}
            answer = await self._ask(existing, or_end=or_end)
            if answer.problems:
                # False sorts first: an error that stays is raised rather than one that may pass
                raise min(answer.problems.values(), key=may_be_listed_later)
            return answer.offsets

        return await self._retry_lookups(find) if wanted else {}

    async def _retry_lookups(self, find: Callable[[bool], Awaitable[Offsets]]) -> Offsets:
        return await self.retries.retry_attempts("Finding offsets", find, may_be_listed_later)

    async def _list_available(
        self, wanted: Mapping[TopicPartition, int], wait: float | None = None
    ) -> Offsets:
        """Return the offsets of available partitions, with one request to each leader, and a warning about the others.

        Raises an error if it stays, or if a partition has been unavailable for less than `wait` seconds.
        """
        time = asyncio.get_running_loop().time
        limit = min(UNAVAILABLE_TIMEOUT if wait is None else wait, self._settings.api_timeout)
        answer = await self._ask(wanted, limit=limit)
        if not answer.problems:
            return answer.offsets
        problem = min(answer.problems.values(), key=may_be_listed_later)
        if not may_be_listed_later(problem) or not self._unavailable.longer_than(limit, wanted, time()):
            raise problem
        unavailable = self._unavailable.describe(wanted, time())
        self.retries.warn(
            "The query", f"continues without new records of unavailable partitions {unavailable}"
        )
        age = max(UNAVAILABLE_METADATA_AGE, UNAVAILABLE_METADATA_AGE_FACTOR * self._refresh_seconds)
        self._metadata_valid_until = min(self._metadata_valid_until, time() + age)
        return answer.offsets

    async def _ask(
        self, wanted: Mapping[TopicPartition, int], *, or_end: bool = True, limit: float | None = None
    ) -> ListOffsetsResult:
        """As `LeaderRequests.ask`. The result of each lookup is recorded: an offset that is found again ends the outage of its partition."""
        assert self._requests is not None
        began_at = asyncio.get_running_loop().time()
        answer = await self._requests.ask(wanted, or_end=or_end, limit=limit)
        self._unavailable.update(wanted, answer.problems, began_at)
        return answer

    async def committed(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the group's committed offsets.

        Partitions without one are left out, as are offsets whose metadata has another topic id: the topic was recreated.
        """
        return same_topic_offsets(await self.committed_with_topic_ids(partitions), self._assigned)

    async def committed_with_topic_ids(self, partitions: Iterable[TopicPartition]) -> Commits:
        """Return the group's committed offsets, with the topic ids in their metadata."""
        wanted, group_id = list(partitions), self._settings.group_id
        assert group_id is not None

        async def find(retrying: bool) -> Commits:
            await self._find_assigned(retrying)
            found = await fetch_offsets_and_ids(
                self.cluster, group_id, wanted, lane=GROUP_LANE, require_stable=True
            )
            return {tp: (committed.offset, topic_id) for tp, (committed, topic_id) in found.items()}

        return await self.retries.retry_attempts(f"Finding the committed offsets of group {group_id!r}", find)
