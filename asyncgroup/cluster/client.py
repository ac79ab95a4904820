"""What the clients of one cluster share: its metadata, requests to its nodes, and its coordinators.

`Cluster` is the public object over it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Self
from uuid import UUID

from asyncgroup.checks import check_topic
from asyncgroup.cluster.bootstrap import BootstrapServers
from asyncgroup.cluster.coordinators import CoordinatorClient
from asyncgroup.cluster.metadata import (
    BrokerInfo,
    ClusterView,
    TopicInfo,
    merge,
    topic_error,
    with_doubt,
    with_leader,
    without_controller,
)
from asyncgroup.cluster.network_client import NetworkClient
from asyncgroup.config import ClientConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
)
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import SingleFlight
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.wire import messages as m
from asyncgroup.wire.loading import load_client

__all__ = ["ClusterClient"]

_log = logging.getLogger("asyncgroup.cluster")

IDLE_CHECK_SECONDS: Final = 60.0
"""Longest interval between two checks for idle connections."""


class ClusterClient:
    """The metadata of a cluster, kept up to date for the tracked topics (Java's `MetadataUpdater`), and lookups in it.

    `network` sends requests to nodes, over the connections of `pool`; `coordinators` sends them to coordinators. Raises
    ConfigError if `bootstrap_servers` is malformed; entering raises NoBrokersError if none of them answers.
    """

    def __init__(
        self,
        bootstrap_servers: BootstrapServers,
        config: ClientConfig | None = None,
        *,
        hooks: Iterable[object] | Hooks = (),
        rng: random.Random | None = None,
    ) -> None:
        self.network = NetworkClient(bootstrap_servers, config, hooks=hooks, rng=rng)
        self.pool = self.network.pool
        self.config = self.network.config
        self.hooks = self.network.hooks
        self.random = self.network.random
        self.coordinators = CoordinatorClient(self.network, self.refresh)
        self._not_created: set[str] = set()
        self._topics: Counter[str] = Counter()
        """Tracked topics, each with the number of `track` calls that are not undone yet."""
        self._created: Counter[str] = Counter()
        """The same of the calls that may create the topic."""
        self._updated = asyncio.Event()
        """Set at the next metadata refresh, then replaced by a new event."""
        self._single_flight = SingleFlight("metadata refreshes", self._refresh_once, waits_a_turn=True)

    def __repr__(self) -> str:
        return repr(self.network)

    @property
    def view(self) -> ClusterView:
        """The metadata of the last refresh."""
        return self.network.view

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self.network.is_open

    @property
    def last_response_at(self) -> float:
        """Loop time of the last response of any broker; minus infinity before the first one."""
        return self.pool.last_responses.last

    def backoff(self) -> RetryBackoff:
        """Return a new RetryBackoff with the configured delays."""
        return RetryBackoff.configured(self.config, self.random)

    def retry(
        self,
        *,
        retries: float = float("inf"),
        timeout: float | None = None,
        longest: float = float("inf"),
        cuts_pause: bool = False,
        cuts_attempts: bool = False,
    ) -> RetryLoop:
        """Return the state of a new loop that retries with the configured delays; the arguments are those of RetryLoop."""
        return RetryLoop(
            self.backoff(),
            retries=retries,
            timeout=timeout,
            longest=longest,
            cuts_pause=cuts_pause,
            cuts_attempts=cuts_attempts,
        )

    def _metadata_retry(self) -> RetryLoop:
        """Return the state of a new metadata lookup, which uses `metadata_retry_backoff` if that is given."""
        config = self.config
        backoff = RetryBackoff.configured(config, self.random, config.metadata_retry_backoff)
        return RetryLoop(backoff, retries=config.metadata_retry_max)

    # --- open and close ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await load_client()
        await self.network.start()
        try:
            await self.network.resolve_bootstrap()
            await self.refresh()
        except BaseException:
            await self.aclose()
            raise
        self.network.spawn(self._maintain)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; in-flight requests fail with ConnectionLost. Safe to call twice."""
        self.network.close()
        try:
            await self._single_flight.aclose()
        finally:
            await self.network.aclose()

    async def _maintain(self) -> None:
        """Refresh the metadata every `metadata_refresh_interval` seconds and close idle connections."""
        interval = self.config.metadata_refresh_interval
        turn = min(interval or IDLE_CHECK_SECONDS, self.config.connections_max_idle, IDLE_CHECK_SECONDS)
        time = asyncio.get_running_loop().time
        while True:
            due = self.view.updated_at + interval if interval else float("inf")
            await asyncio.sleep(min(turn, max(due - time(), 0.0)))
            self.pool.close_idle()
            if time() >= due:
                try:
                    await self.refresh()
                except ClosedError:  # `aclose` waits for something before it ends this task
                    return
                except AsyncGroupError as error:
                    _log.warning("metadata refresh failed: %s", error)
                    # `updated_at` has not changed: without a pause the next try would be at once
                    await asyncio.sleep(turn)

    # --- tracked topics ----------------------------------------------------------------------------------------

    def track(self, topics: Iterable[str], *, creates: bool = True) -> None:
        """Include these topics in every metadata refresh until `untrack`; calls are counted.

        With `creates` a refresh creates them, if `allow_auto_topic_creation` and the brokers allow that.
        """
        for topic in topics:
            self._topics[topic] += 1
            self._created[topic] += creates

    def untrack(self, topics: Iterable[str], *, creates: bool = True) -> None:
        """Undo one `track` call."""
        for topic in topics:
            self._topics[topic] -= 1
            self._created[topic] -= creates
            if self._topics[topic] <= 0:
                del self._topics[topic], self._created[topic]

    @contextmanager
    def tracking(self, topics: Iterable[str], *, creates: bool = True) -> Iterator[None]:
        """Include these topics in every metadata refresh during the block."""
        tracked = list(topics)
        self.track(tracked, creates=creates)
        try:
            yield
        finally:
            self.untrack(tracked, creates=creates)

    def never_create(self, topics: Iterable[str]) -> None:
        """Let no lookup of this client create these topics, also with `allow_auto_topic_creation`.

        Their configuration matters.
        """
        self._not_created.update(topics)

    # --- refreshes ---------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Request the metadata of the tracked topics; concurrent calls share a request.

        A call during a refresh waits for the next one, because the response of the current one may be older than the
        event that made the caller ask. Raises NoBrokersError, AuthenticationError, BrokerError, RequestTimedOut (after
        `metadata_timeout`), ClosedError.
        """
        if not self.is_open:
            raise ClosedError(f"{self!r} is not open")
        await self._single_flight()

    async def try_refresh(self) -> None:
        """Refresh the metadata as `refresh`; a failure is only logged, for callers that look again later."""
        try:
            await self.refresh()
        except AsyncGroupError as error:
            _log.debug("metadata refresh failed: %s", error)

    async def _refresh_once(self) -> None:
        requested = None if self.config.metadata_full else sorted(self._topics)
        response = await self._fetch_metadata(requested)
        if requested is None:
            response.topics += await self._missing_topics(response)
        view = merge(self.view, response, requested, asyncio.get_running_loop().time())
        self.network.set_view(view)
        self._updated.set()
        self._updated = asyncio.Event()
        self.hooks.emit("on_metadata", view.cluster_id, len(view.brokers), len(view.topics))

    async def _missing_topics(
        self, response: m.MetadataResponse
    ) -> list[m.MetadataResponse.MetadataResponseTopic]:
        """Request by name the tracked topics that a response for all topics lacks: only a named topic is auto-created."""
        missing = self._topics.keys() - {topic.name for topic in response.topics}
        return list((await self._fetch_metadata(sorted(missing))).topics) if missing else []

    async def _fetch_metadata(self, requested: list[str] | None) -> m.MetadataResponse:
        """Request the metadata of these topics, None for all. Raises the error of a response that has one.

        Topics that must not be created have a separate request, also while they exist: they may have been deleted.
        """
        apart = self._not_to_create(requested or ())
        async with self._metadata_limit("metadata"):
            if requested is None or not apart:
                return await self._request_metadata(requested)
            if len(apart) == len(requested):
                return await self._request_metadata(requested, creates=False)
            response = await self._request_metadata([name for name in requested if name not in apart])
            found = await self._request_metadata(sorted(apart), creates=False)
        response.topics += found.topics
        # each of the two may be answered by another broker
        known = {broker.node_id for broker in response.brokers}
        response.brokers += [broker for broker in found.brokers if broker.node_id not in known]
        return response

    def _not_to_create(self, requested: Iterable[str]) -> set[str]:
        """Return the topics that no request may create: those of `never_create`, and those that are only looked up."""
        if not self.config.allow_auto_topic_creation:
            return set()
        return {name for name in requested if name in self._not_created or self._created[name] <= 0}

    @asynccontextmanager
    async def _metadata_limit(self, what: str) -> AsyncIterator[None]:
        """Limit the body to `metadata_timeout` seconds; raises RequestTimedOut."""
        limit = self.config.metadata_timeout
        try:
            async with asyncio.timeout(limit) as scope:
                yield
        except TimeoutError:
            # a timeout of the body is not this one
            if not scope.expired():
                raise
            raise RequestTimedOut(f"{what}: no answer within metadata_timeout={limit!r} s") from None

    async def _request_metadata(
        self, requested: list[str] | None, *, creates: bool = True
    ) -> m.MetadataResponse:
        def build(version: int) -> m.MetadataRequest:
            return self._metadata_request(requested, version, creates=creates)

        response = await self.network.request_any(m.MetadataRequest, build)
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            # KIP-1102: the known brokers may belong to another cluster by now; only the bootstrap addresses are valid
            response = await self.network.request_bootstrap(m.MetadataRequest, build)
        if response.error_code:
            raise BrokerError(response.error_code, "metadata")
        if not response.brokers:
            raise NoBrokersError("the metadata response lists no brokers (is the cluster still starting?)")
        return response

    def _metadata_request(
        self, requested: list[str] | None, version: int, *, creates: bool
    ) -> m.MetadataRequest:
        topics = None
        if requested is not None or version == 0:  # in version 0 an empty list requests all topics
            topics = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in requested or ()]
        # brokers before Kafka 0.11 (version 3) always create topics if they are configured to
        allow = (creates and self.config.allow_auto_topic_creation) or version < 4
        return m.MetadataRequest(topics=topics, allow_auto_topic_creation=allow)

    async def wait_updated(self) -> None:
        """Wait for the next metadata refresh."""
        await self._updated.wait()

    def update_leader(
        self, tp: TopicPartition, leader: int, epoch: int, brokers: Iterable[BrokerInfo] = ()
    ) -> None:
        """Apply a newer leader that a Fetch or Produce response named (KIP-951); ignored if it is not newer."""
        self.network.view = with_leader(self.view, tp, leader, epoch, brokers)

    def doubt_leader(self, tp: TopicPartition, node_id: int) -> None:
        """If a response named this leader, let the next refresh decide again: the node refused a request or did not answer."""
        self.network.view = with_doubt(self.view, tp, node_id)

    def doubt_controller(self, node_id: int) -> None:
        """Let the next refresh say which node is the controller: this one refused a request or did not answer."""
        self.network.view = without_controller(self.view, node_id)

    # --- lookups -----------------------------------------------------------------------------------------------

    async def all_topics(self) -> dict[str, TopicInfo]:
        """Request and return every topic of the cluster; `view` is not changed."""
        response = await self._fetch_metadata(None)
        return dict(merge(ClusterView(), response, None, asyncio.get_running_loop().time()).topics)

    async def existing_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Request these topics without creating one (from Kafka 0.11 on); those that do not exist are left out.

        `view` is not changed. One with another error has its `error_code`. Raises NoBrokersError, AuthenticationError,
        BrokerError, RequestTimedOut, ClosedError.
        """
        requested = sorted(names)
        async with self._metadata_limit("metadata"):
            response = await self._request_metadata(requested, creates=False)
        return dict(merge(ClusterView(), response, requested, asyncio.get_running_loop().time()).topics)

    async def topic_names(self, topic_ids: Iterable[UUID]) -> list[str]:
        """Request the names of topics by id (KIP-516, Kafka 3.1); those that do not exist are left out. `view` is not changed."""
        topics = [
            m.MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)
            for topic_id in sorted(topic_ids)
        ]
        async with self._metadata_limit("names of topics"):
            response = await self.network.request_any(
                m.MetadataRequest, lambda _: m.MetadataRequest(topics, allow_auto_topic_creation=False)
            )
        return sorted(topic.name for topic in response.topics if topic.name and not topic.error_code)

    async def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return these topics from `view`, or look them up without creating any; single partitions may still be leaderless.

        Raises ConfigError for an invalid name, BrokerError for a topic that is still unknown or unavailable after
        `metadata_retry_max` retries or whose error is not retriable, RequestTimedOut after `metadata_timeout`.
        """
        wanted = dict.fromkeys(
            (check_topic(name) for name in ([names] if isinstance(names, str) else names)), 0
        )
        return await self._look_up(wanted, f"topics {', '.join(wanted)}")

    async def find_partitions(self, wanted: Iterable[TopicPartition], *, creates: bool = False) -> None:
        """Return when `view` has these partitions: brokers may show added ones late, and one may not know all of them yet.

        `creates` is that of `track`.

        Raises as `topics` does, and BrokerError for a partition that is still unknown after `metadata_retry_max` retries.
        """
        counts: dict[str, int] = {}  # the least number of partitions by topic
        for tp in wanted:
            topic, partition = tp
            if not isinstance(partition, int) or partition < 0:
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}", "it does not exist"
                )
            counts[check_topic(topic)] = max(counts.get(topic, 0), partition + 1)
        await self._look_up(counts, f"partitions of {', '.join(counts)}", creates=creates)

    async def _look_up(
        self, wanted: Mapping[str, int], what: str, *, creates: bool = False
    ) -> dict[str, TopicInfo]:
        """Return these topics, each with at least the given number of partitions."""
        with self.tracking(wanted, creates=creates):
            async with self._metadata_limit(what):
                await self._find_topics(wanted)
            return {name: self.view.topics[name] for name in wanted}

    async def _find_topics(self, wanted: Mapping[str, int]) -> None:
        retry = self._metadata_retry()
        if self._first_error(wanted) is not None:
            # the first refresh does not count as a retry: a missing topic may only be new to this client
            await self.refresh()
        while (problem := self._first_error(wanted)) is not None:
            if not problem.retriable:
                raise problem
            await retry.pause(problem)
            await self.refresh()

    def _first_error(self, wanted: Mapping[str, int]) -> BrokerError | None:
        errors = (topic_error(self.view, name, count) for name, count in wanted.items())
        return next((error for error in errors if error is not None), None)

    async def partitions(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic, in order; raises as `topics` does."""
        return (await self.topics([topic]))[topic].numbers

    async def leader(self, tp: TopicPartition) -> int:
        """Return the node id of a partition's leader, looked up if unknown.

        Raises as `topics` does, and BrokerError if there is no leader after `metadata_retry_max` retries.
        """
        with self.tracking([tp.topic], creates=False):
            async with self._metadata_limit(f"leader of {tp}"):
                return await self._find_leader(tp)

    async def _find_leader(self, tp: TopicPartition) -> int:
        retry = self._metadata_retry()
        while (leader := self.view.leader(tp)) < 0:
            topic = (await self.topics([tp.topic]))[tp.topic]
            if (leader := self.view.leader(tp)) >= 0:
                break
            known = tp.partition in topic.partitions
            code = ErrorCode.LEADER_NOT_AVAILABLE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await retry.pause(BrokerError(code, f"partition {tp}", None if known else "it does not exist"))
            await self.refresh()
        return leader
