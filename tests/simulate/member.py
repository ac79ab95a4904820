"""A simulated program with a group member: it starts, consumes, continues after failures, and ends in all possible ways."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncgroup import ConsumerConfig, ConsumerGroup, Session, SubscriptionPattern, TopicPartition
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.group.consumer.membership import ConsumerMembership
from asyncgroup.group.membership import JOIN_GRACE, RETRY_BACKOFF_SHARE
from tests.simulate.handler import Injected, SimHandler
from tests.simulate.oracle import ANY, ClaimLog
from tests.simulate.plan import GROUP, MemberSpec
from tests.simulate.program import GIVEN_UP, RAISED_BY_RUN, Program

if TYPE_CHECKING:
    from tests.simulate.world import World

__all__ = ["SimMember"]


class SimMember(Program):
    """The program with the member `spec.name`. All its connections come from `host`."""

    def __init__(self, world: World, spec: MemberSpec, host: str) -> None:
        super().__init__(world, spec, host)
        self._next_spec = spec
        self.handler = SimHandler(
            spec,
            world.oracle,
            world.story,
            random.Random(f"{world.plan.seed} {spec.name} works"),
            world.fail,
            world.observer.is_up_to_date,
        )
        self.handler.check_committed = self._check_committed
        self.handler.max_silence = world.plan.setting.session_timeout + 0.001
        self.handler.silence_of_join = self._silence_of_join
        self.handler.expects_prompt_commits = world.plan.is_orderly
        if spec.is_cooperative:
            # between join and sync no commit is accepted, and a leader that stopped without leaving may have joined
            self.handler.max_commit_seconds += world.plan.setting.session_timeout
        self.handler.last_response_at = lambda: self._last_answer
        self._group: ConsumerGroup | None = None
        self._last_answer = self._longest_silence = 0.0  # seconds
        self._failed_commits: dict[TopicPartition, str] = {}
        self._leaves: dict[str, Any] = {}
        self._last_commit_unknown = False
        """Whether the session's last commit was given up, so that its outcome is unknown."""

    @property
    def group(self) -> ConsumerGroup | None:
        """The group while it is open."""
        return self._group

    @property
    def _is_ending(self) -> bool:
        return bool(self._leaves)

    @property
    def _config(self) -> ConsumerConfig:
        spec = self.spec
        more = {} if spec.is_consumer else {"balance_by_rack": spec.balance_by_rack}
        return ConsumerConfig(
            auto_offset_reset="earliest",
            auto_commit=spec.auto_commit,
            auto_commit_interval=spec.auto_commit_interval,
            rack_id=spec.rack_id,
            **self._settings,
            **more,
        )

    @property
    def _topics(self) -> list[str] | re.Pattern[str] | SubscriptionPattern:
        if not isinstance(self.spec.topics, str):
            return list(self.spec.topics)
        pattern = self.world.pattern
        return SubscriptionPattern(pattern.pattern) if self.spec.matches_at_broker else pattern

    # --- its program ----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self.spec = self.handler.spec = self._next_spec

    async def _run_once(self) -> None:
        group = ConsumerGroup(self.world.bootstrap_servers, GROUP, self._config, hooks=[self])
        if self.spec.is_consumer:
            group._make_membership = partial(ConsumerMembership, make_id=self._make_id)
        group.cluster._inner.random.seed(f"{self.world.plan.seed} {self.name} {self.rng.random()}")
        async with group:
            self._group = group
            try:
                await self._consume_again(partial(self._consume, group))
            finally:
                self._group = None
                leaves, self._leaves = self._leaves, {}
                await group.aclose(**leaves)

    async def _consume(self, group: ConsumerGroup) -> None:
        """Call `run()` once. It may raise only the handler's exception, and RAISED_BY_RUN for a static member."""
        try:
            await group.run(self._topics, self.handler)
        except Injected:
            self.write("run() raised what the handler raised")
        except BrokerError as error:
            if self._is_refused_protocol(error.code):
                self._change_spec()
                self._leaves = {"leave": None}
            elif error.code not in RAISED_BY_RUN or self.spec.instance_id is None:
                self._fail("run() recovers", f"run() raised {error}")
            self.write(f"run() raised {error.name}")
        except Exception as error:
            self._fail("run() recovers", f"run() raised {type(error).__name__}: {error}")

    # --- its ends -------------------------------------------------------------------------------------------------

    def leave(self, **how: Any) -> None:
        """Close for good."""
        self.should_run = False
        self._close(how)

    def restart(self, *, leaves: bool = False) -> None:
        """Close, by default without leaving the group, and start again."""
        self._close({"leave": leaves})

    def change_protocol(self) -> None:
        """Close, and start again with the other group protocol."""
        self._change_spec()
        self._close({})

    def _change_spec(self) -> None:
        first, other = self.world.plan.members[self.name], self.world.plan.others[self.name]
        self._next_spec = other if self.spec is first else first

    def _is_refused_protocol(self, code: int) -> bool:
        """Whether the coordinator refuses the member's protocol, as its group may not change to it."""
        policy = self.world.plan.setting.migration_policy
        if self.spec.is_consumer:
            return code == ErrorCode.GROUP_ID_NOT_FOUND and policy in ("disabled", "downgrade")
        return code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL and policy == "disabled"

    def _close(self, how: Mapping[str, Any]) -> None:
        if self.group is not None:
            self._leaves = {"leave": None, **how}
            with self.world.network.source(self.host):
                self.world.spawn(self.group.aclose(**how), f"{self.name} closes")

    def _forget_claims(self) -> None:
        for claim in [claim for claim in self.world.oracle.running if claim.member == self.name]:
            self.world.oracle.claim_ended(claim)

    # --- hooks ----------------------------------------------------------------------------------------------------

    def on_response(self, _node_id: int, api: str, *_values: object) -> None:
        """Record the time of the last response; a broker that answers only ApiVersions may serve no requests."""
        if api != "ApiVersions":
            now = asyncio.get_running_loop().time()
            silence = now - self._last_answer
            self._longest_silence = max(self._longest_silence, silence)
            if self.spec.is_consumer and silence > self._max_silence:
                self._check_no_session(silence)
            self._last_answer = now

    def _silence_of_join(self) -> float:
        """Return for how many seconds JoinGroup may wait in the coordinator while records are handed out; 0 without a join.

        A cooperative member that joins sends no heartbeats, as in Java.
        """
        joins = self.spec.is_cooperative and self.group is not None and self.group.health().state == "joining"
        return self.spec.rebalance_timeout + JOIN_GRACE if joins else 0.0

    @property
    def _max_silence(self) -> float:
        """Seconds until a member of a consumer group whose heartbeats are not answered has given up its session.

        That is decided when a heartbeat fails, and each of them has a time limit and is followed by a pause.
        """
        timeout = self.session_timeout
        limit = max(self.world.plan.setting.heartbeat_interval, timeout / 3)
        return timeout + limit + RETRY_BACKOFF_SHARE * timeout + 0.1

    def _check_no_session(self, silence: float) -> None:
        session = None if self.group is None else self.group.session
        if session is not None and not session.ended:
            text = f"{session} goes on after {silence:.3f} s without a response of any broker"
            self._fail("a session without responses is lost", text)

    def on_join(self, _group: str, member_id: str, generation: int, _leads: bool) -> None:
        """Check that no handler of an earlier session is running."""
        self.write(f"joined as {member_id}, generation {generation}")
        running = [claim for claim in self.world.oracle.running if claim.member == self.name]
        if running and not self.spec.is_cooperative:
            self._fail("one session at a time", f"joins while the handlers of {[*map(str, running)]} run")
        for claim in running:
            claim.joined = generation
        if not running:
            self._failed_commits.clear()
        self._member_id = member_id
        self._last_commit_unknown = False
        self._longest_silence = 0.0

    def on_log(self, text: str) -> None:
        """Handle a warning that the client has logged, for events without a hook."""
        if "could not leave" in text:
            self.failed_to_leave = True
            if self.world.plan.is_orderly:
                self._fail("orderly actions cost nothing", text)
        if "not committed" in text and self.world.plan.is_orderly:
            self._fail("orderly actions cost nothing", text)
        if (given_up := GIVEN_UP.search(text)) is not None:
            self.handler.given_up.add(given_up[1])
        if "the last commit took too long" in text:
            self._last_commit_unknown = True
            for claim in (claim for claims in self.handler.claims.values() for claim in claims):
                self.world.oracle.doubtful.add((self._member_id, claim.tp, ANY))

    def on_commit(
        self, _group: str, offsets: Mapping[TopicPartition, Any], errors: Mapping[TopicPartition, Any] | None
    ) -> None:
        """Record the result of a commit."""
        for tp, committed in offsets.items():
            error = (errors or {}).get(tp)
            if error is None:
                self._failed_commits.pop(tp, None)
                continue
            if not (self.spec.is_consumer and self._will_be_sent_again(error)):
                self._failed_commits[tp] = str(error)
            self.world.oracle.doubtful.add((self._member_id, tp, committed.offset))
        if errors:
            self._write_errors(errors)
            if self.world.plan.is_orderly and not self._will_be_sent_again(*errors.values()):
                self._fail("orderly actions cost nothing", f"a commit failed: {errors}")

    def _check_loss(self, session: Session, cause: object) -> None:
        """Check that the coordinator of a consumer group has ended the membership, or that no broker has answered."""
        silence = max(self._longest_silence, self.world.loop.time() - self._last_answer)
        # differences of times are not exact
        is_silent = round(silence, 6) >= self.world.plan.setting.session_timeout
        if self.spec.is_consumer and not is_silent and not self.world.observer.has_ended(session):
            self._fail("sessions are lost with cause", f"{session.member_id} is in the group: {cause}")

    def on_session_end(self, session: Session, cause: object) -> None:
        """Check the end of a session, after its last commit."""
        self._write_end(session, cause)
        self.handler.session_ended(session)
        claims = self.handler.claims.pop(session, [])
        if session.is_lost:
            self._check_not_lost(session, cause)
            self._check_loss(session, cause)
            return
        self._check_committed(claims)

    def _check_committed(self, claims: Iterable[ClaimLog]) -> None:
        """Check the commits of claims that have ended in order: nothing of what they have marked is repeated."""
        if not self.spec.auto_commit or self.is_dead or self._last_commit_unknown:
            return
        for claim in claims:
            if claim.tp not in self._failed_commits and not claim.is_left_behind:
                self.handler._try(self.world.oracle.check_orderly_end, claim)
