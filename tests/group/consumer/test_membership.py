"""A KIP-848 membership in virtual time: joins, heartbeats, reconciliation, losses and leaving, with a scripted coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from uuid import UUID

import pytest
import pytest_asyncio

from asyncgroup import BrokerError, ErrorCode, TopicPartition
from asyncgroup.errors import UnsupportedVersionError
from asyncgroup.group.consumer.heartbeats import EARLY_INTERVAL
from asyncgroup.group.membership import HeartbeatResult
from asyncgroup.lifecycle import cancel_and_wait
from tests.cluster.scripted import Call
from tests.group.consumer.scene import AA, BB, INTERVAL, Scene, ScriptedMember, now, scene

pytestmark = pytest.mark.usefixtures("no_asyncio_errors")


@pytest_asyncio.fixture
async def it() -> AsyncIterator[Scene]:
    """A membership with the default configuration."""
    async with scene() as it:
        yield it


@pytest_asyncio.fixture
async def member(it: Scene) -> AsyncIterator[ScriptedMember]:
    """The member that stays in its group."""
    async with it.staying() as member:
        yield member


async def test_a_join_and_the_first_report() -> None:
    async with scene(rack_id="r1", remote_assignor="range") as it:
        joined = await it.membership.join(["bb", "aa"])
        (beat,) = it.beats
        request = beat.request
        assert (request.member_epoch, request.subscribed_topic_names) == (0, ["aa", "bb"])
        assert (request.rack_id, request.server_assignor, request.rebalance_timeout_ms) == (
            "r1",
            "range",
            60_000,
        )
        assert beat.owned == {}
        assert UUID(request.member_id).version == 4
        assert beat.call.version == 1
        assert joined.assignment == {"aa": [0, 1]}
        assert joined.identity == it.membership.identity == (request.member_id, 1, None)
    async with scene() as it, it.staying() as member:
        await asyncio.sleep(0.1)
        assert [beat.owned for beat in it.beats] == [{}, {AA: [0, 1]}], "at once"
        assert it.beats[1].request.rebalance_timeout_ms == -1
        assert len(member.assigned) == 1


async def test_heartbeats_are_early_at_first_and_then_at_the_interval_of_the_coordinator() -> None:
    async with scene() as it, it.staying():
        await asyncio.sleep(60)
        gaps = [after.at - before.at for before, after in pairwise(it.beats)]
        early = [gap for gap in gaps[1:] if gap < 1]
        assert all(gap == pytest.approx(EARLY_INTERVAL, abs=0.01) for gap in early)
        assert len(early) * EARLY_INTERVAL == pytest.approx(2 * INTERVAL, abs=1)
        regular = gaps[1 + len(early) :]
        assert len(regular) > 8
        assert all(gap == pytest.approx(INTERVAL, abs=0.01) for gap in regular), "and no storm follows"


async def test_an_interval_longer_than_the_session_does_not_stop_the_heartbeats() -> None:
    """At least two heartbeats go out in a session timeout, and one that is not answered is repeated within it."""
    async with scene() as it, it.staying():
        await it.settle()
        it.interval = (2**31 - 1) / 1000
        await asyncio.sleep(200)
        it.script = [it.ignore]
        await asyncio.sleep(100)
        gaps = {round(after.at - before.at, 1) for before, after in pairwise(it.beats)}
        assert gaps == {22.5}


async def test_a_revocation_is_reported_only_when_it_is_complete(it: Scene, member: ScriptedMember) -> None:
    """Heartbeats go on while handlers drain, without the list; then the shorter list is sent at once."""
    await it.settle()
    member.may_finish.clear()
    it.pending = {AA: [0]}
    await asyncio.sleep(4 * INTERVAL)
    assert len(it.beats) >= 4
    assert all(beat.owned is None for beat in it.beats)
    assert it.membership.heartbeats.last_stable_sent_at <= member.revoking_since
    it.beats.clear()
    member.may_finish.set()
    finished_at = now()
    it.epoch = 2
    it.pending = {AA: [0], BB: [3]}
    await asyncio.sleep(0.1)
    assert [beat.owned for beat in it.beats] == [{AA: [0]}, {AA: [0], BB: [3]}]
    assert it.beats[0].at - finished_at < 0.01
    assert [joined.assignment for joined in member.assigned] == [
        {"aa": [0, 1]},
        {"aa": [0]},
        {"aa": [0], "bb": [3]},
    ]
    assert [joined.identity.generation_id for joined in member.assigned] == [1, 1, 2]


async def test_an_epoch_without_an_assignment_changes_only_the_identity() -> None:
    async with scene() as it, it.staying() as member:
        it.epoch = 4
        await asyncio.sleep(1)
        assert [(joined.identity.generation_id, joined.assignment) for joined in member.assigned] == [
            (1, {"aa": [0, 1]}),
            (4, {"aa": [0, 1]}),
        ]
        assert it.membership.identity.generation_id == 4


async def test_topic_ids_that_metadata_does_not_know_wait_for_it(it: Scene, member: ScriptedMember) -> None:
    await it.settle()
    it.scripted.topic_ids["bb"] = other = UUID(int=0xB2)
    it.pending = {AA: [0, 1], other: [2]}
    await asyncio.sleep(INTERVAL + 2)
    assert member.assigned[-1].assignment == {"aa": [0, 1], "bb": [2]}
    assert len(it.scripted.requests_of("Metadata")) < 6
    assert [beat.owned for beat in it.beats if beat.owned] == [{AA: [0, 1], other: [2]}]


async def test_topic_ids_that_metadata_never_knows_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with scene() as it, it.staying() as member:
        await it.settle()
        it.pending = {AA: [0, 1], UUID(int=0xCC): [2]}
        await asyncio.sleep(300)
        assert member.assigned[-1].assignment == {"aa": [0, 1]}
        found = [record.getMessage() for record in caplog.records if "ids" in record.getMessage()]
        assert found == [
            f"group g: assigned topics are not consumed, as the metadata lacks their ids: {UUID(int=0xCC)}"
        ]
        assert len(it.scripted.requests_of("Metadata")) < 300 / 1.5


async def test_topics_that_metadata_forgets_are_kept(it: Scene, member: ScriptedMember) -> None:
    """A broker that has just started may not know all topics yet."""
    await it.settle()
    it.scripted.topics.clear()
    await it.cluster._inner.refresh()
    assert not it.cluster._inner.view.topics
    it.epoch = 2
    it.pending = {AA: [0]}
    await asyncio.sleep(2 * INTERVAL)
    assert member.assigned[-1].assignment == {"aa": [0]}
    assert member.owned == [TopicPartition("aa", 0)]


async def test_a_topic_that_was_recreated_is_assigned_by_both_ids(it: Scene, member: ScriptedMember) -> None:
    await it.settle()
    it.scripted.topic_ids["aa"] = other = UUID(int=0xA2)
    it.pending = {AA: [0, 1], other: [1, 2]}
    await asyncio.sleep(2 * INTERVAL)
    assert member.assigned[-1].assignment == {"aa": [0, 1, 2]}


async def test_a_membership_that_is_lost_while_a_revocation_drains(it: Scene, member: ScriptedMember) -> None:
    await it.settle()
    member.may_finish.clear()
    it.pending = {}
    it.script = [it.accept, it.refuse(ErrorCode.FENCED_MEMBER_EPOCH)]
    await asyncio.sleep(3 * INTERVAL)
    assert [result for _, result, _ in member.results] == [HeartbeatResult.LOST]
    assert not it.staying_task.done(), "the handlers drain"
    assert len(it.beats) == 2, "without heartbeats"
    member.may_finish.set()
    await asyncio.sleep(0.1)
    assert it.staying_task.done()
    assert len(it.beats) == 2, "nothing is reported"


async def test_a_lost_response_is_followed_by_all_fields(it: Scene, member: ScriptedMember) -> None:
    await it.settle()
    it.script = [lambda beat: beat.call.cut()]
    await asyncio.sleep(INTERVAL + 1)
    cut, again = it.beats[:2]
    assert not cut.is_full
    assert again.is_full
    assert again.owned == {AA: [0, 1]}
    assert again.at - cut.at < 1
    assert not member.ended
    assert [result for _, result, _ in member.results] == [HeartbeatResult.COORDINATOR_MOVED]


async def test_heartbeats_carry_all_fields_while_an_unanswered_one_may_still_arrive() -> None:
    """It may reach the coordinator after newer ones, and change the epoch or the assignment without the member's knowledge.

    Found by the simulation: the next heartbeat, with the previous epoch and without the owned partitions, was fenced.
    """
    async with scene() as it, it.staying():
        await it.settle()
        it.script = [lambda beat: beat.call.cut()]
        await asyncio.sleep(100)
        cut, *later = it.beats
        doubtful = [beat for beat in later if beat.at < cut.at + 45]
        assert len(doubtful) >= 9
        assert all(beat.is_full and beat.owned == {AA: [0, 1]} for beat in doubtful)
        settled = later[len(doubtful) :]
        assert len(settled) >= 9
        assert not any(beat.is_full or beat.owned for beat in settled)


async def test_a_silent_coordinator_is_asked_again_within_the_session() -> None:
    async with scene() as it, it.staying() as member:
        await it.settle()
        it.script = [it.ignore]
        await asyncio.sleep(INTERVAL + 20)
        assert it.beats[1].is_full
        assert it.beats[1].at - it.beats[0].at == pytest.approx(15, abs=0.5), "a third of the session timeout"
        assert not member.ended


@pytest.mark.parametrize(
    ("described", "timeout"), [("45000", 45.0), ("60000", 60.0), ("6000", 6.0), ("soon", 45.0)]
)
async def test_no_broker_answers_for_the_session_timeout_of_the_group(described: str, timeout: float) -> None:
    async with scene() as it:
        it.session_timeout = described
        async with it.staying() as member:
            await it.settle()
            await it.broker.stop()
            stopped_at = now()
            await asyncio.wait([it.staying_task], timeout=100)
            assert it.staying_task.done()
            lost_at, result, _ = member.results[-1]
            assert result is HeartbeatResult.LOST
            assert timeout - INTERVAL - 1 <= lost_at - stopped_at <= timeout + 0.1


async def test_the_session_timeout_is_asked_for_until_a_broker_answers(it: Scene) -> None:
    it.session_timeout = "20000"
    answer = it.broker.script["DescribeConfigs"]
    asked: list[float] = []

    def fail_twice(call: Call) -> None:
        asked.append(now())
        call.cut() if len(asked) < 3 else answer(call)

    it.broker.script["DescribeConfigs"] = fail_twice
    async with it.staying():
        await it.settle()
        assert len(asked) == 3
        assert it.membership.heartbeats.session_timeout == 20.0


async def test_the_session_timeout_limits_the_heartbeat_that_is_under_way(it: Scene) -> None:
    """The first heartbeat is sent before the session timeout is known: by the default it would wait for 15 s."""
    it.session_timeout = "9000"
    it.script = [it.accept, it.ignore]
    answer = it.broker.script["DescribeConfigs"]
    it.broker.script["DescribeConfigs"] = lambda call: asyncio.get_running_loop().call_later(
        1.0, answer, call
    )
    async with it.staying():
        await asyncio.sleep(10)
        _joins, ignored, again, *_ = it.beats
        assert again.at - ignored.at == pytest.approx(INTERVAL, abs=0.5), (
            "longer than a third of the session timeout"
        )
        assert again.is_full


@pytest.mark.parametrize(
    ("code", "keeps_id"),
    [(ErrorCode.UNKNOWN_MEMBER_ID, False), (ErrorCode.FENCED_MEMBER_EPOCH, True)],
)
async def test_a_member_that_is_refused_stops_and_joins_again(it: Scene, code: int, keeps_id: bool) -> None:
    async with it.staying() as member:
        await it.settle()
        it.script = [it.refuse(code)]
        await asyncio.wait([it.staying_task], timeout=2 * INTERVAL)
        assert it.staying_task.done()
        assert [result for _, result, _ in member.results] == [HeartbeatResult.LOST]
        await asyncio.sleep(10)
        assert len(it.beats) == 1, "until on_lost has run"
    it.pending = {AA: [3]}
    joined = await it.membership.join(["aa"])
    again = it.beats[-1]
    assert (again.request.member_epoch, again.owned, again.is_full) == (0, {}, True)
    assert (again.request.member_id == it.beats[0].request.member_id) is keeps_id
    assert joined.assignment == {"aa": [3]}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNRELEASED_INSTANCE_ID,
    ],
)
async def test_fatal_errors(it: Scene, code: int) -> None:
    it.script = [it.refuse(code)]
    with pytest.raises(BrokerError, match="as the script says") as caught:
        await it.membership.join(["aa"])
    assert caught.value.code == code
    async with it.staying() as member:
        it.script = [it.refuse(code)]
        await asyncio.wait([it.staying_task], timeout=INTERVAL)
        assert [result for _, result, _ in member.results] == [HeartbeatResult.FATAL]


async def test_a_join_is_retried(it: Scene) -> None:
    loading = it.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    moved = it.refuse(ErrorCode.NOT_COORDINATOR)
    it.script = [loading] * 6 + [moved, lambda beat: beat.call.cut()]
    await it.membership.join(["aa"])
    assert len(it.beats) == 9
    assert all(beat.is_full and beat.request.member_epoch == 0 for beat in it.beats)
    assert len(it.scripted.requests_of("FindCoordinator")) == 3


async def test_a_classic_group_that_cannot_be_upgraded_is_fatal(it: Scene) -> None:
    it.script = [it.refuse(ErrorCode.GROUP_ID_NOT_FOUND)]
    with pytest.raises(BrokerError, match="as the script says"):
        await it.membership.join(["aa"])
    assert len(it.beats) == 1


async def test_a_join_waits_for_the_first_generation_of_a_classic_group() -> None:
    """The wait may take as long as a rebalance, and no response announces its end: it does not count as retries."""
    async with scene(rejoin_retry_max=2) as it:
        it.script = [it.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)] * 8
        await it.membership.join(["aa"])
        assert len(it.beats) == 9
        await it.membership.leave("for another try", None, 1.0)
        it.script = [it.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)] * 999
        began = asyncio.get_running_loop().time()
        with pytest.raises(BrokerError) as caught:
            await it.membership.join(["aa"])
        assert caught.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert 260 <= asyncio.get_running_loop().time() - began <= 300
        assert len(it.beats) < 30


async def test_a_join_gives_up() -> None:
    async with scene(rejoin_retry_max=2) as it:
        it.script = [it.refuse(ErrorCode.NOT_COORDINATOR)] * 3
        with pytest.raises(BrokerError) as caught:
            await it.membership.join(["aa"])
        assert caught.value.code == ErrorCode.NOT_COORDINATOR
        assert len(it.beats) == 3


async def test_a_fenced_join_takes_another_id_and_removes_the_former_member(it: Scene) -> None:
    """Brokers without KAFKA-19233 refuse a known id with epoch 0; its partitions would wait for its session timeout."""
    it.script = [it.refuse(ErrorCode.FENCED_MEMBER_EPOCH)]
    await it.membership.join(["aa"])
    refused, removed, joined = it.beats
    assert [beat.request.member_epoch for beat in it.beats] == [0, -1, 0]
    assert refused.request.member_id == removed.request.member_id != joined.request.member_id


async def test_a_broker_without_kip_848(it: Scene) -> None:
    it.broker.versions["ConsumerGroupHeartbeat"] = (0, 0)
    with pytest.raises(UnsupportedVersionError, match=r"Kafka 4.0.*group_protocol='classic'"):
        await it.membership.join(["aa"])


# --- commits ----------------------------------------------------------------------------------------------------------


async def test_a_refused_commit_is_decided_by_a_heartbeat(it: Scene, member: ScriptedMember) -> None:
    await it.settle()
    heartbeats = it.membership.heartbeats
    assert not await heartbeats.confirm_refusal(1, now()), "accepted"
    assert not await heartbeats.confirm_refusal(1, it.beats[-1].at - 1), "known already"
    assert len(it.beats) == 1
    it.script = [it.refuse(ErrorCode.NOT_COORDINATOR), it.refuse(ErrorCode.UNKNOWN_MEMBER_ID)]
    assert await heartbeats.confirm_refusal(1, now())
    assert member.results[-1][1] is HeartbeatResult.LOST
    assert await heartbeats.confirm_refusal(1, now()), "no heartbeats any more"


async def test_a_commit_with_a_stale_epoch_waits_for_a_newer_one() -> None:
    async with scene() as it, it.staying():
        await it.settle()
        it.epoch = 2
        began = now()
        assert await it.membership.heartbeats.wait_joined()
        assert now() - began < 0.1
        assert it.membership.identity.generation_id == 2
        assert not await it.membership.heartbeats.wait_joined(), "there is no newer one"


# --- the end of a session, and leaving --------------------------------------------------------------------------------


async def test_the_next_session_of_a_member_in_the_group(it: Scene) -> None:
    async with it.staying():
        await asyncio.sleep(1)
    it.beats.clear()
    it.pending = {AA: [0, 1]}
    async with it.staying(["aa", "bb"]) as member:
        await asyncio.sleep(0.1)
        assert member.assigned[0].assignment == {"aa": [0, 1]}
        first, second = it.beats
        assert (first.request.member_epoch, first.is_full, first.owned) == (1, True, {})
        assert first.request.subscribed_topic_names == ["aa", "bb"]
        assert second.owned == {AA: [0, 1]}


async def test_a_session_that_ends_gets_newer_epochs(it: Scene, member: ScriptedMember) -> None:
    """The session's last commit has the newer epoch."""
    await it.settle()
    member.ended = True
    it.epoch, it.pending = 2, {AA: [0]}
    await asyncio.sleep(2 * INTERVAL)
    assert member.epochs == [2]
    assert len(member.assigned) == 1


async def test_a_session_that_ends_does_not_report_what_it_did_not_apply() -> None:
    async with scene() as it, it.staying() as member:
        await it.settle()
        member.ended = True
        it.pending = {AA: [0]}
        await asyncio.sleep(3 * INTERVAL)
        assert len(it.beats) >= 3
        assert all(beat.owned is None for beat in it.beats)


@pytest.mark.parametrize(
    ("instance", "leaves", "epoch"),
    [
        (None, None, -1),
        (None, True, -1),
        (None, False, None),
        ("d", None, -2),
        ("d", True, -1),
        ("d", False, -2),
    ],
)
async def test_leaving(instance: str | None, leaves: bool | None, epoch: int | None) -> None:
    async with scene(group_instance_id=instance) as it:
        async with it.staying():
            pass
        it.beats.clear()
        for _ in range(2):
            await it.membership.leave("closing", leaves, 5.0)
        sent = [(beat.request.member_epoch, beat.request.instance_id) for beat in it.beats]
        assert sent == ([] if epoch is None else [(epoch, instance)]), "once"


async def test_leaving_is_retried_and_ends_in_time() -> None:
    async with scene() as it:
        async with it.staying():
            pass
        it.beats.clear()
        it.script = [it.refuse(ErrorCode.NOT_COORDINATOR), it.refuse(ErrorCode.UNKNOWN_MEMBER_ID)]
        await it.membership.leave("closing", None, 5.0)
        assert [beat.request.member_epoch for beat in it.beats] == [-1, -1]
    async with scene() as it:
        async with it.staying():
            pass
        it.script = [it.ignore] * 100
        began = now()
        await it.membership.leave("closing", None, 5.0)
        assert 3.9 < now() - began < 5.1


async def test_a_join_that_was_cancelled_is_left() -> None:
    """After the join on its connection; a join that is never answered does not take all of the time."""
    async with scene() as it:
        it.script = [it.ignore, it.ignore]
        joining = asyncio.ensure_future(it.membership.join(["aa"]))
        await asyncio.sleep(1)
        await cancel_and_wait(joining)
        leaving = asyncio.ensure_future(it.membership.leave("closing", None, 5.0))
        await asyncio.sleep(1)
        join, leave = it.beats
        assert leave.call.connection is join.call.connection
        it.accept(join)
        it.accept(leave)
        await leaving
        assert [beat.request.member_epoch for beat in it.beats] == [0, -1]
        await it.membership.leave("closing", None, 5.0)
        assert len(it.beats) == 2
    async with scene() as it:
        it.script = [it.ignore, it.ignore]
        joining = asyncio.ensure_future(it.membership.join(["aa"]))
        await asyncio.sleep(1)
        await cancel_and_wait(joining)
        began = now()
        await it.membership.leave("closing", None, 5.0)
        assert [beat.request.member_epoch for beat in it.beats] == [0, -1, -1]
        assert 2.5 <= now() - began < 3.5
