"""A simulated program with a work queue: it starts, handles, continues after failures, and ends in all possible ways."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncgroup import (
    ConsumerBusy,
    ConsumerConfig,
    ConsumerGroup,
    ProducerConfig,
    Session,
    TopicPartition,
)
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError
from asyncgroup.group.consumer.membership import ConsumerMembership
from asyncgroup.workqueue import Backoff, DeadLetter, Delivery, Mode, RetryTopic, WorkQueue
from asyncgroup.workqueue.group_engine.claim_feed import ClaimFeed
from asyncgroup.workqueue.group_engine.engine import ConsumerGroupEngine
from tests.simulate.oracle import ANY, ClaimLog
from tests.simulate.plan import GROUP, MemberSpec
from tests.simulate.program import GIVEN_UP, RAISED_BY_RUN, Program
from tests.simulate.queues_claims import QueueClaim
from tests.simulate.queues_handler import QueueWork
from tests.simulate.queues_setting import DEAD_TOPIC, PLAIN_MAX, RETRY_TOPIC
from tests.simulation.story import Violation
from tests.work_queues import core_of, group_queue

if TYPE_CHECKING:
    from tests.simulate.world import World

__all__ = ["SimQueue"]


class SimQueue(Program):
    """The program with the queue `spec.name`. All its connections come from `host`."""

    def __init__(self, world: World, spec: MemberSpec, host: str) -> None:
        assert world.plan.queues is not None
        assert world.queues is not None
        super().__init__(world, spec, host)
        self.setting = world.plan.queues
        self.queue_spec = self.setting.specs[spec.name]
        self.oracle = world.queues
        self.handler = QueueWork(
            world.plan.seed, spec.name, self.setting, self.oracle, world.story, world.fail, self._find_claim
        )
        self.claims: dict[ClaimFeed, QueueClaim] = {}
        self.queue: WorkQueue | None = None
        self._is_closing = False

    @property
    def group(self) -> ConsumerGroup | None:
        """The queue's group while it is open."""
        return None if self.queue is None else core_of(self.queue).engine.group

    @property
    def _is_ending(self) -> bool:
        return self._is_closing

    # --- its queue ----------------------------------------------------------------------------------------------------

    def _make_queue(self) -> WorkQueue:
        setting, spec = self.setting, self.queue_spec
        topics = self.world.pattern if isinstance(self.spec.topics, str) else list(self.spec.topics)
        return group_queue(
            self.world.bootstrap_servers,
            GROUP,
            topics,
            mode=setting.mode,
            concurrency=spec.concurrency,
            ack_timeout=setting.ack_timeout,
            on_ack_timeout="cancel" if setting.cancels_expired else "redeliver",
            nack_backoff=Backoff(*setting.backoff),
            retry=RetryTopic(RETRY_TOPIC) if setting.has_retry else None,
            dead_letter=self._dead_letter,
            ack_group_time=spec.ack_group_time,
            ack_group_size=spec.ack_group_size,
            receiver_queue=spec.receiver_queue,
            max_waiting=spec.max_waiting,
            allow_out_of_order=setting.out_of_order,
            initial_position="earliest",
            priority=spec.priority,
            name=self.name,
            config=ConsumerConfig(**self._settings),
            producer_config=self._producer_config,
            hooks=[self],
        )

    @property
    def _dead_letter(self) -> DeadLetter | None:
        if not self.setting.has_dead_letters:
            return None
        most = self.setting.max_redeliveries
        return DeadLetter(PLAIN_MAX if most is None else most, topic=DEAD_TOPIC)

    @property
    def _producer_config(self) -> ProducerConfig:
        return ProducerConfig(
            client_id=self.name,
            request_timeout=3.0,
            connect_timeout=2.0,
            delivery_timeout=5.0,
            retry_backoff_max=1.0,
            metadata_refresh_interval=3.0,
        )

    def prepare(self, opening: ConsumerGroupEngine) -> None:
        """Seed the random choices of a queue that opens."""
        if self.spec.is_consumer:
            opening.group._make_membership = partial(ConsumerMembership, make_id=self._make_id)
        opening.cluster._inner.random.seed(f"{self.world.plan.seed} {self.name} {self.rng.random()}")

    # --- its program --------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._is_closing = False

    def _has_failed(self, error: AsyncGroupError) -> None:
        if not isinstance(error, ConsumerBusy):
            super()._has_failed(error)
            return
        self.world.story.count("busy")
        self.write(f"is refused: {error}")
        if self.setting.mode is not Mode.EXCLUSIVE:
            self._fail("only exclusive queues are busy", str(error))

    async def _run_once(self) -> None:
        async with self._make_queue() as queue:
            self.queue = queue
            try:
                await self._consume_again(partial(self._consume, queue))
            finally:
                self.queue = None

    async def _consume(self, queue: WorkQueue) -> None:
        """Handle deliveries once, until the queue closes or the program is disturbed."""
        self.handler.cancelled_at = None
        self.oracle.reads(self.name, self.world.loop.time())
        try:
            if self.queue_spec.style == "loop":
                await self.handler.loop(queue)
            elif self.queue_spec.style == "batch":
                await self.handler.batches(queue)
            else:
                await queue.run(self.handler)
        except ClosedError:
            if not self._is_closing and self.is_active:
                self._fail("run() recovers", "the queue is closed")
        except ConsumerBusy:
            raise
        except BrokerError as error:
            if error.code not in RAISED_BY_RUN or self.spec.instance_id is None:
                self._fail("run() recovers", f"run() raised {error}")
            self.write(f"run() raised {error.name}")
            self._is_closing = True
        except Exception as error:
            self._fail("run() recovers", f"run() raised {type(error).__name__}: {error}")

    # --- its ends -----------------------------------------------------------------------------------------------------

    def leave(self, *, at_heartbeat: bool = False) -> None:
        """Close for good."""
        self.should_run = False
        self._close()

    def restart(self, *, leaves: bool = False) -> None:
        """Close, and start again."""
        self._close()

    def _close(self) -> None:
        if self.queue is not None:
            self._is_closing = True
            with self.world.network.source(self.host):
                self.world.spawn(self.queue.aclose(), f"{self.name} closes")

    def cancel(self) -> None:
        """Cancel the consuming task; the program consumes again after a pause."""
        super().cancel()
        if self._consuming is not None:
            self.handler.cancelled_at = self.world.loop.time()

    def _forget_claims(self) -> None:
        self.oracle.member_died(self.name)

    # --- its claims ---------------------------------------------------------------------------------------------------

    def feed_began(self, feed: ClaimFeed) -> None:
        """The queue has a new claim, and has restored its window."""
        if self.is_dead:
            return
        session, spec = feed._session, self.spec
        log = ClaimLog(
            self.name,
            session.member_id,
            session.generation_id,
            feed.work.tp,
            feed.window.window.base,
            spec.instance_id,
            (lambda: session.generation_id) if spec.is_consumer else None,
        )
        self.write(f"claim {log.tp} with {feed.window.window!r}")
        is_up_to_date = self.world.observer.is_up_to_date(session, log.tp)
        now = self.world.loop.time()
        try:
            self.claims[feed] = self.oracle.claim_began(
                log, session, feed.window.window, now, is_up_to_date=is_up_to_date
            )
        except Violation as violation:
            self.world.fail(violation)

    def feed_revoked(self, feed: ClaimFeed) -> None:
        """The claim was revoked: its handlers may end."""
        if feed in self.claims:
            self.claims[feed].revoked_at = self.world.loop.time()

    def feed_ended(self, feed: ClaimFeed) -> None:
        """The queue has forgotten the claim."""
        if feed in self.claims and not self.is_dead:
            if not self.claims[feed].log.has_ended:
                self.write(f"claim {feed.work.tp} is over with {feed.window.window!r}")
            self.oracle.claim_ended(self.claims[feed])

    def _find_claim(self, delivery: Delivery) -> QueueClaim:
        return next(claim for feed, claim in self.claims.items() if feed.work is delivery._work)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def on_join(self, _group: str, member_id: str, generation: int, _leads: bool) -> None:
        """Note the generation of the claims that go on."""
        self.write(f"joined as {member_id}, generation {generation}")
        for claim in self.claims.values():
            if not claim.log.has_ended:
                claim.log.joined = generation
        self._member_id = member_id

    def on_commit(
        self, _group: str, offsets: Mapping[TopicPartition, Any], errors: Mapping[TopicPartition, Any] | None
    ) -> None:
        """Note the result of a commit."""
        for tp, committed in offsets.items():
            error = (errors or {}).get(tp)
            claims = [claim for claim in self.claims.values() if claim.tp == tp]
            if error is not None:
                self.oracle.base.doubtful.add((self._member_id, tp, committed.offset))
            for claim in claims[-1:]:
                claim.has_failed_commit = error is not None and not self._will_be_sent_again(error)
        if errors:
            self._write_errors(errors)

    def settled(self, session: Session, partitions: Collection[TopicPartition] | None = None) -> None:
        """The last commit of these partitions is done; None: of all of the session."""
        for claim in self.claims.values():
            if claim.session is session and (partitions is None or claim.tp in partitions):
                claim.is_settled = claim.log.has_ended

    def on_session_end(self, session: Session, cause: object) -> None:
        """Note the end of a session, after its last commit."""
        if not session.is_lost:
            self.settled(session)
        self._write_end(session, cause)
        self._check_not_lost(session, cause)

    def on_log(self, text: str) -> None:
        """Handle a warning that the client has logged, for events without a hook."""
        if "could not leave" in text:
            self.failed_to_leave = True
        given_up = GIVEN_UP.search(text)
        unknown = "the last commit took too long" in text
        for claim in self.claims.values():
            if given_up is not None and str(claim.tp) == given_up[1]:
                claim.is_given_up = True
            if unknown:
                self.oracle.base.doubtful.add((self._member_id, claim.tp, ANY))
                claim.has_failed_commit = True
