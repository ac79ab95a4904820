"""Invariants of groups whose members use both protocols, under random actions, refused writes and moves of the coordinator."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncgroup.broker.groups.classic.classic_group import ClassicGroupState
from asyncgroup.broker.groups.consumer.modern_group import ConsumerGroupState
from asyncgroup.error_codes import ErrorCode
from tests.broker.groups.consumer_members import parts, topics_of
from tests.broker.groups.mixed_members import ClassicClient, Client, ConsumerClient
from tests.broker.harness import GROUP, Harness
from tests.profiles import examples

PARTITIONS = 5
LONGEST = 400
"""Seconds; the first session of a member that joins has 300 (Kafka's `CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS`)."""
INDEXES = st.integers(0, 4)
INSTANCES = st.sampled_from([None, None, "i", "j"])


class MixedGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Harness(
            topics=topics_of(a=PARTITIONS),
            group_consumer_assignment_interval=0.0,
            group_consumer_session_timeout=20.0,
        )
        self.clients: list[Client] = []
        self.cooperative = False
        self.made = 0

    @initialize(cooperative=st.booleans())
    def choose(self, cooperative):
        """Eager and cooperative assignors cannot share a group here."""
        self.cooperative = cooperative

    def pick(self, index: int) -> Client | None:
        return self.clients[index % len(self.clients)] if self.clients else None

    def new(self, kind: str, instance: str | None) -> Client:
        self.made += 1
        if kind == "classic":
            return ClassicClient(self.driver, instance, cooperative=self.cooperative)
        return ConsumerClient(self.driver, f"m{self.made}", instance)

    # -- actions ---------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(["classic", "consumer"]), instance=INSTANCES)
    def appear(self, kind, instance):
        if len(self.clients) < 5 and (instance is None or instance not in self.instances()):
            client = self.new(kind, instance)
            self.clients.append(client)
            client.step()

    def instances(self) -> set[str | None]:
        return {client.instance for client in self.clients}

    @rule(index=INDEXES, times=st.integers(1, 4))
    def step(self, index, times):
        if client := self.pick(index):
            for _ in range(times):
                client.step()

    @rule(index=INDEXES)
    def beat_without_acting(self, index):
        client = self.pick(index)
        if isinstance(client, ConsumerClient):
            client.beat()

    @rule(index=INDEXES, kind=st.sampled_from(["classic", "consumer"]), leaves=st.booleans())
    def restart(self, index, kind, leaves):
        """A static member is restarted, also with the other protocol; others leave for good."""
        if client := self.pick(index):
            if client.instance is None:
                client.leave()
                self.clients.remove(client)
                return
            if leaves and isinstance(client, ConsumerClient):
                client.leave(-2)
            at = self.clients.index(client)
            self.clients[at] = self.new(kind, client.instance)
            self.clients[at].step()

    @rule(index=INDEXES)
    def removed_by_an_admin(self, index):
        """The member does not know yet: with the classic protocol it is a zombie until its next request."""
        client = self.pick(index)
        if client is not None and client.id and client.instance is None:
            self.driver.leave(client.id)
            client.lose(ErrorCode.UNKNOWN_MEMBER_ID)

    @rule(seconds=st.sampled_from([0.5, 5.0, 12.0, 31.0]))
    def wait(self, seconds):
        """Members whose sessions have expired know it by their own clocks."""
        self.driver.advance(seconds)
        self.forget_lost()

    def forget_lost(self) -> None:
        known = self.member_ids()
        for client in self.clients:
            if isinstance(client, ClassicClient):
                client.learn()
            if client.id not in known and client.assigned:
                client.lose(ErrorCode.UNKNOWN_MEMBER_ID)

    def member_ids(self) -> set[str]:
        group = self.driver.coordinator.consumer_groups.get(GROUP)
        classic = self.driver.coordinator.groups.get(GROUP)
        return {*(group.members if group else ()), *(classic.members if classic else ())}

    @rule(error=st.sampled_from([None, None, ErrorCode.NOT_ENOUGH_REPLICAS]))
    def refuse_writes(self, error):
        self.driver.log.refuses = error

    @rule()
    def move(self):
        self.driver.move()

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_owners(self):
        for client in self.clients:
            if isinstance(client, ClassicClient):
                client.learn()
        group = self.driver.coordinator.consumer_groups.get(GROUP)
        members = () if group is None else group.members.values()
        count = Counter(tp for member in members for tp in (*member.assigned, *member.revoking))
        assert all(number == 1 for number in count.values()), count
        live = Counter(tp for client in self.clients for tp in client.owned)
        assert all(number == 1 for number in live.values()), live

    @invariant()
    def a_group_has_one_protocol(self):
        coordinator = self.driver.coordinator
        group, classic = coordinator.consumer_groups.get(GROUP), coordinator.groups.get(GROUP)
        assert group is None or classic is None
        if group is not None and group.members and len(group.members) > 0:
            timed = {key[2] for key in self.driver.timers.keys if key[0] == "consumer session"}
            assert timed == set(group.members), "each member has a session"
        if classic is not None:
            assert not [key for key in self.driver.timers.keys if key[0].startswith("consumer")]

    @invariant()
    def the_log_has_the_same_group(self):
        driver = self.driver
        kept = driver.timers, driver.coordinator, driver.store
        group = driver.coordinator.consumer_groups.get(GROUP)
        classic = driver.coordinator.groups.get(GROUP)
        other = driver.new_coordinator(driver.timers.__class__())
        other.load(0)
        assert other.consumer_groups.get(GROUP) == group
        loaded = other.groups.get(GROUP)
        assert (loaded is None) == (classic is None)
        if classic is not None and loaded is not None and classic.state is ClassicGroupState.STABLE:
            assert loaded.generation_id == classic.generation_id
            assert {m: one.assignment for m, one in loaded.members.items()} == {
                m: one.assignment for m, one in classic.members.items()
            }
        driver.timers, driver.coordinator, driver.store = kept

    def teardown(self):
        """When writes succeed and all members act, they share everything.

        Another one joins before that: a static member that takes the place of another one does not begin a rebalance, also
        if that had not got its partitions yet, as with Kafka. They need a minute, but for a static member of a classic group
        in its first rebalance whose place another one took: after a heartbeat of the consumer protocol, which fails then and
        has answered its join, it stays until its first session ends (`LONGEST`).
        """
        self.driver.log.refuses = None
        kinds = {isinstance(client, ConsumerClient) for client in self.clients}
        self.clients.append(self.new("consumer" if True in kinds else "classic", None))
        self.act_for_a_minute()
        if not self.are_all_members():
            for _ in range(LONGEST // 60):
                if not self.are_all_members():
                    self.act_for_a_minute()
            self.act_for_a_minute()
        ids = self.member_ids()
        assert ids == {client.id for client in self.clients}
        owned = [tp for client in self.clients for tp in client.owned]
        assert sorted(owned) == sorted(parts("a", *range(PARTITIONS)))
        group = self.driver.coordinator.consumer_groups.get(GROUP)
        if True in kinds:
            assert group is not None
            assert group.state is ConsumerGroupState.STABLE
            sizes = [len(client.owned) for client in self.clients]
            assert max(sizes) - min(sizes) <= 1

    def are_all_members(self) -> bool:
        return self.member_ids() == {client.id for client in self.clients}

    def act_for_a_minute(self) -> None:
        for _ in range(60):
            self.driver.advance(1.0)
            self.forget_lost()
            for client in self.clients:
                client.step()
            self.no_partition_has_two_owners()


MixedGroups.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestMixedGroups = MixedGroups.TestCase


def test_the_place_of_a_member_is_taken_in_its_first_rebalance():
    groups = MixedGroups()
    groups.choose(cooperative=False)
    groups.appear(kind="classic", instance="i")
    groups.restart(index=0, kind="consumer", leaves=False)
    groups.beat_without_acting(index=0)
    groups.teardown()
