"""Reconnector: one attempt at a time, whatever ends a connection and whenever it does."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any, Self

import pytest

from asyncgroup.errors import (
    AuthenticationError,
    ClosedError,
    ConfigError,
    ConnectError,
    ConnectionLost,
    DecodeError,
    RequestTimedOut,
)
from asyncgroup.net.backoff import RetryBackoff
from asyncgroup.pulsar.connection.lookup import BrokerOfTopic
from asyncgroup.pulsar.errors import SERVER_ERRORS, PulsarServerError, Refusal
from asyncgroup.pulsar.reconnector import Reconnector, ReconnectState
from asyncgroup.pulsar.service_url import BrokerAddress
from tests.pulsar.support import now

LOST = ConnectionLost("lost")
A, B = (BrokerOfTopic(address, address) for address in (BrokerAddress("a", 1), BrokerAddress("b", 1)))
B_URL = "pulsar://b:1"


class FakeConnection:
    """A connection to `broker`."""

    def __init__(self, broker: BrokerOfTopic) -> None:
        self.logical, self.physical = broker
        self.is_closed = False


Outcome = Exception | float | None
"""What a step does: raise, take so many seconds, or succeed at once."""


class Scene:
    """A reconnector whose lookups, connections and attaches do what the test has listed, else succeed at once.

    It is the thing that is attached. `events` has what happened with its time.
    """

    def __init__(self, limit: float = 30.0) -> None:
        self.lookups: list[Outcome] = []
        self.opens: list[Outcome] = []
        self.attaches: list[Outcome | Callable[[FakeConnection], object]] = []
        self.owner = A
        self.events: list[tuple[float, str, Any]] = []
        self.retries: list[Exception] = []
        self.attaching = 0
        self.is_attached = False
        self.reconnector = Reconnector(
            "consumer 1",
            self,  # type: ignore[arg-type]
            self._find,
            self._open,  # type: ignore[arg-type]
            RetryBackoff(0.1, 60.0, None),
            limit,
            self.retries.append,
        )

    async def __aenter__(self) -> Self:
        self.reconnector.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reconnector.aclose()

    def _note(self, what: str, value: Any = None) -> None:
        self.events.append((round(now(), 3), what, value))

    def happened(self, what: str) -> list[tuple[float, Any]]:
        """Return times and values of the events of a kind."""
        return [(time, value) for time, kind, value in self.events if kind == what]

    @property
    def connection(self) -> FakeConnection:
        """The connection to which it is attached."""
        found: Any = self.reconnector.connection
        assert found is not None
        return found  # type: ignore[no-any-return]

    async def _find(self) -> BrokerOfTopic:
        self._note("lookup")
        await self._do(self.lookups)
        return self.owner

    async def _open(self, broker: BrokerOfTopic) -> FakeConnection:
        self._note("open", broker.logical.host)
        await self._do(self.opens)
        return FakeConnection(broker)

    async def attach(self, connection: FakeConnection, epoch: int) -> None:
        assert not self.attaching
        assert not self.is_attached
        self.attaching += 1
        self._note("attach", epoch)
        try:
            if self.attaches and callable(self.attaches[0]):
                act = self.attaches.pop(0)
                assert callable(act)
                act(connection)
            await self._do(self.attaches)
            self.is_attached = True
        finally:
            self.attaching -= 1

    async def _do(self, planned: list[Any]) -> None:
        outcome = planned.pop(0) if planned and not callable(planned[0]) else None
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            await asyncio.sleep(outcome)

    def detached(self, error: Exception) -> None:
        assert self.is_attached
        self.is_attached = False
        self._note("detached", error)

    def failed(self, error: Exception) -> None:
        self.is_attached = False
        self._note("failed", error)


async def test_the_first_attempt() -> None:
    async with Scene() as scene:
        assert scene.reconnector.state is ReconnectState.CONNECTING
        await scene.reconnector.wait_ready()
        assert scene.reconnector.state is ReconnectState.READY
        assert scene.connection.logical == A.logical
        assert [kind for _, kind, _ in scene.events] == ["lookup", "open", "attach"]
        assert scene.reconnector.was_ready
        assert repr(scene.reconnector) == "<Reconnector consumer 1: ready, 1 attempts>"
    assert scene.reconnector.state is ReconnectState.CLOSED


async def test_after_a_loss_the_topic_is_looked_up_again() -> None:
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        scene.owner = B
        scene.reconnector.lost(scene.connection, LOST)
        assert scene.reconnector.state is ReconnectState.CONNECTING
        assert scene.reconnector.connection is None
        await scene.reconnector.wait_ready()
        assert scene.connection.logical == B.logical
        assert scene.happened("attach") == [(0.0, 0), (0.1, 1)]
        assert scene.happened("detached") == [(0.0, LOST)]
        assert scene.retries == [LOST]


async def test_pauses_double_and_begin_again_after_a_success() -> None:
    async with Scene() as scene:
        scene.attaches = [RequestTimedOut("slow")] * 4
        await scene.reconnector.wait_ready()
        scene.reconnector.lost(scene.connection, LOST)
        await asyncio.sleep(1)
        times = [time for time, _ in scene.happened("lookup")]
        assert times == pytest.approx([0, 0.1, 0.3, 0.7, 1.5, 1.6])
        assert len(scene.retries) == 5


async def test_pauses_have_a_limit() -> None:
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        scene.lookups = [ConnectError("down")] * 20
        scene.reconnector.lost(scene.connection, LOST)
        await asyncio.sleep(1000)
        times = [time for time, _ in scene.happened("lookup")]
        assert max(after - before for before, after in itertools.pairwise(times)) == pytest.approx(60.0)
        assert scene.reconnector.state is ReconnectState.READY, "it never gives up after a success"


# --- losses at bad moments --------------------------------------------------------------------------------------------


async def test_the_end_of_an_earlier_connection_is_ignored() -> None:
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        first = scene.connection
        scene.reconnector.lost(first, LOST)
        scene.reconnector.lost(first, LOST, B_URL)
        await scene.reconnector.wait_ready()
        scene.reconnector.lost(first, LOST)
        scene.reconnector.lost(None, LOST)
        assert scene.reconnector.state is ReconnectState.READY
        await asyncio.sleep(100)
        assert len(scene.happened("attach")) == 2
        assert len(scene.happened("detached")) == 1


@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_loss_during_an_attempt_makes_it_fail(succeeds: bool) -> None:
    async with Scene() as scene:

        def lose(connection: FakeConnection) -> None:
            scene.reconnector.lost(connection, LOST)

        scene.attaches = [lose, None if succeeds else ConnectionLost("lost as well")]
        await scene.reconnector.wait_ready()
        assert [time for time, _ in scene.happened("attach")] == pytest.approx([0.0, 0.1])
        assert len(scene.happened("detached")) == succeeds
        assert len(scene.retries) == 1


@pytest.mark.parametrize("url", [None, B_URL])
async def test_a_close_by_the_broker_ends_an_attempt_that_waits_without_a_limit(url: str | None) -> None:
    async with Scene() as scene:
        scene.attaches = [1e6]
        await asyncio.sleep(3)
        assert scene.attaching
        connection: Any = scene.reconnector._attempting
        scene.reconnector.lost(connection, LOST, url)
        scene.reconnector.lost(connection, ConnectionLost("the connection as well"))
        await scene.reconnector.wait_ready()
        assert [time for time, _ in scene.happened("attach")] == pytest.approx([0.0, 3.0 if url else 3.1])
        assert [host for _, host in scene.happened("open")] == ["a", "b" if url else "a"]
        assert len(scene.retries) == 1
        assert scene.happened("detached") == []


async def test_a_loss_between_the_answer_and_the_end_of_the_attempt() -> None:
    async with Scene() as scene:

        async def attach(connection: FakeConnection, epoch: int) -> None:
            scene._note("attach", epoch)
            answer = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(1, answer.set_result, None)
            if epoch == 0:
                asyncio.get_running_loop().call_later(1, scene.reconnector.lost, connection, LOST)
            await answer
            scene.is_attached = True

        scene.attach = attach  # type: ignore[method-assign]
        await asyncio.sleep(1.05)
        assert scene.reconnector.state is ReconnectState.CONNECTING
        assert scene.happened("detached") == [(1.0, LOST)]
        await scene.reconnector.wait_ready()
        assert now() == pytest.approx(2.1)


async def test_who_waits_sees_it_attached_even_if_it_is_lost_at_once() -> None:
    async with Scene() as scene:
        loop = asyncio.get_running_loop()
        # called after the attempt has succeeded, before the task that waits goes on
        scene.attaches = [lambda connection: loop.call_soon(scene.reconnector.lost, connection, LOST)]
        await scene.reconnector.wait_ready()
        assert scene.reconnector.connection is not None
        assert scene.happened("attach") == [(0.0, 0), (0.1, 1)]


# --- assigned brokers (PIP-307) ---------------------------------------------------------------------------------------


async def test_at_the_assigned_broker_at_once_and_without_a_lookup() -> None:
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        scene.reconnector.lost(scene.connection, LOST, B_URL)
        await scene.reconnector.wait_ready()
        assert now() == 0.0
        assert scene.connection.logical == B.logical == scene.connection.physical
        assert len(scene.happened("lookup")) == 1


async def test_an_assigned_broker_behind_the_proxy() -> None:
    proxy = BrokerAddress("proxy", 6650)
    async with Scene() as scene:
        scene.owner = BrokerOfTopic(A.logical, proxy)
        await scene.reconnector.wait_ready()
        scene.reconnector.lost(scene.connection, LOST, B_URL)
        await scene.reconnector.wait_ready()
        assert (scene.connection.logical, scene.connection.physical) == (B.logical, proxy)


@pytest.mark.parametrize("fails", ["opens", "attaches"])
async def test_the_assigned_broker_is_tried_once(fails: str) -> None:
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        getattr(scene, fails).append(ConnectError("down"))
        scene.reconnector.lost(scene.connection, LOST, B_URL)
        await scene.reconnector.wait_ready()
        assert [(time, host) for time, host in scene.happened("open")] == [(0.0, "a"), (0.0, "b"), (0.1, "a")]
        assert scene.happened("lookup") == [(0.0, None), (0.1, None)]


async def test_an_assigned_url_that_is_not_valid_is_looked_up() -> None:
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        scene.reconnector.lost(scene.connection, LOST, "ftp://b")
        await scene.reconnector.wait_ready()
        assert len(scene.happened("lookup")) == 2


async def test_assigned_during_an_attempt() -> None:
    async with Scene() as scene:
        scene.attaches = [lambda connection: scene.reconnector.lost(connection, LOST, B_URL), LOST]
        await scene.reconnector.wait_ready()
        assert now() == 0.0
        assert [host for _, host in scene.happened("open")] == ["a", "b"]


async def test_brokers_that_assign_to_each_other_do_not_cause_a_storm() -> None:
    async with Scene() as scene:
        for _ in range(100):
            await scene.reconnector.wait_ready()
            url = "pulsar://a:1" if scene.connection.logical == B.logical else B_URL
            scene.reconnector.lost(scene.connection, LOST, url)
        assert now() > 5
        await asyncio.sleep(5)
        assert len(scene.happened("lookup")) == 1


# --- errors of the broker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [*SERVER_ERRORS, 99])
@pytest.mark.parametrize("where", ["lookups", "attaches"])
async def test_each_error_at_first(code: int, where: str) -> None:
    error = PulsarServerError(code, "SUBSCRIBE", "refused")
    async with Scene() as scene:
        getattr(scene, where).append(error)
        if error.refusal is Refusal.RETRY:
            await scene.reconnector.wait_ready()
            assert scene.retries == [error]
            return
        with pytest.raises(PulsarServerError) as raised:
            await scene.reconnector.wait_ready()
        assert (raised.value.code, str(raised.value)) == (code, str(error))
        assert scene.reconnector.state is ReconnectState.FAILED
        assert scene.happened("failed") == [(0.0, error)]
        assert scene.retries == []


@pytest.mark.parametrize("code", [*SERVER_ERRORS, 99])
async def test_each_error_after_a_success(code: int) -> None:
    error = PulsarServerError(code, "SUBSCRIBE", "refused")
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        scene.attaches.append(error)
        scene.reconnector.lost(scene.connection, LOST)
        if error.refusal is not Refusal.RAISE:
            await scene.reconnector.wait_ready()
            assert scene.retries == [LOST, error]
            return
        with pytest.raises(PulsarServerError):
            await scene.reconnector.wait_ready()
        await asyncio.sleep(100)
        assert scene.reconnector.state is ReconnectState.FAILED
        assert len(scene.happened("attach")) == 2


def test_the_table_of_errors_is_the_documented_one() -> None:
    by = {
        refusal: {spec.name for spec in SERVER_ERRORS.values() if spec.refusal is refusal}
        for refusal in Refusal
    }
    assert by[Refusal.RAISE_AT_FIRST] == {
        *("AuthorizationError", "ConsumerBusy", "ProducerBusy"),
        *("SubscriptionNotFound", "ConsumerAssignError"),
    }
    assert by[Refusal.RAISE] == {
        *("UnsupportedVersionError", "TopicNotFound", "TopicTerminatedError", "InvalidTopicName"),
        *("IncompatibleSchema", "InvalidTxnStatus", "NotAllowedError", "TransactionConflict"),
        *("TransactionNotFound", "ProducerFenced"),
    }
    assert list(SERVER_ERRORS) == list(range(26))


@pytest.mark.parametrize(
    "error", [ConnectError("x"), ConnectionLost("x"), RequestTimedOut("x"), DecodeError("x"), OSError("x")]
)
@pytest.mark.parametrize("where", ["lookups", "opens", "attaches"])
async def test_errors_of_the_network_are_repeated(error: Exception, where: str) -> None:
    async with Scene() as scene:
        getattr(scene, where).append(error)
        await scene.reconnector.wait_ready()
        assert scene.retries == [error]
        assert now() == pytest.approx(0.1)


async def test_a_credential_that_is_refused_at_first_and_later() -> None:
    error = AuthenticationError("expired")
    async with Scene() as scene:
        scene.opens.append(error)
        with pytest.raises(AuthenticationError):
            await scene.reconnector.wait_ready()
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        scene.opens += [error] * 3
        scene.reconnector.lost(scene.connection, LOST)
        await scene.reconnector.wait_ready()
        assert scene.retries == [LOST, error, error, error]


@pytest.mark.parametrize("error", [ConfigError("x"), ClosedError("the client is closed")])
@pytest.mark.parametrize("later", [True, False])
async def test_errors_that_no_retry_changes(error: Exception, later: bool) -> None:
    async with Scene() as scene:
        if later:
            await scene.reconnector.wait_ready()
            scene.reconnector.lost(scene.connection, LOST)
        scene.lookups.append(error)
        with pytest.raises(type(error)):
            await scene.reconnector.wait_ready()


@pytest.mark.parametrize("where", ["lookups", "opens", "attaches"])
async def test_a_bug_ends_it_with_its_error(where: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Scene() as scene:
        getattr(scene, where).append(ZeroDivisionError("a bug"))
        waiting = [asyncio.create_task(scene.reconnector.wait_ready()) for _ in range(2)]
        for one in waiting:
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await one
        assert scene.reconnector.state is ReconnectState.FAILED
        assert "consumer 1: it ends" in caplog.text


@pytest.mark.parametrize("when", ["retry", "attached"])
async def test_a_bug_in_a_callback_ends_it_as_well(when: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Scene() as scene:

        def fail(_: Exception) -> None:
            raise ZeroDivisionError("a bug")

        scene.reconnector._on_retry = fail
        if when == "attached":
            await scene.reconnector.wait_ready()
            with pytest.raises(ZeroDivisionError):  # in the connection, which logs it
                scene.reconnector.lost(scene.connection, LOST)
            await scene.reconnector.wait_ready()
            return
        scene.lookups.append(LOST)
        with pytest.raises(ZeroDivisionError):
            await scene.reconnector.wait_ready()


# --- the first attempts -----------------------------------------------------------------------------------------------


async def test_the_first_attempts_have_a_limit() -> None:
    async with Scene(limit=30.0) as scene:
        scene.lookups = [ConnectError("down")] * 50
        with pytest.raises(ConnectError, match="down"):
            await scene.reconnector.wait_ready()
        assert 30.0 <= now() <= 60.0
        assert len(scene.happened("failed")) == 1


async def test_an_attempt_that_succeeds_after_the_limit_counts() -> None:
    async with Scene(limit=30.0) as scene:
        scene.attaches = [500.0]
        await scene.reconnector.wait_ready()
        assert now() == pytest.approx(500.0)


# --- fail and aclose --------------------------------------------------------------------------------------------------


async def test_fail_ends_it() -> None:
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        error = PulsarServerError(25, "SEND", "fenced")
        scene.reconnector.fail(error)
        scene.reconnector.fail(LOST)
        scene.reconnector.lost(scene.connection if scene.reconnector.connection else None, LOST)
        with pytest.raises(PulsarServerError, match="fenced"):
            await scene.reconnector.wait_ready()
        assert scene.happened("failed") == [(0.0, error)]
        await asyncio.sleep(100)
        assert len(scene.happened("lookup")) == 1
    assert scene.reconnector.state is ReconnectState.FAILED, "also after it was closed"
    with pytest.raises(PulsarServerError):
        await scene.reconnector.wait_ready()


@pytest.mark.parametrize("after", [0.5, 1.5, 2.5])
async def test_fail_during_an_attempt_cancels_it(after: float) -> None:
    async with Scene() as scene:
        scene.lookups, scene.opens, scene.attaches = [1.0], [1.0], [1.0]
        await asyncio.sleep(after)
        scene.reconnector.fail(LOST)
        await asyncio.sleep(100)
        assert scene.reconnector.state is ReconnectState.FAILED
        assert not scene.is_attached
        assert not scene.attaching


@pytest.mark.parametrize("after", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5])
async def test_aclose_during_each_await(after: float) -> None:
    async with Scene() as scene:
        scene.lookups, scene.opens, scene.attaches = [1.0], [1.0], [1.0]
        waiting = asyncio.create_task(scene.reconnector.wait_ready())
        await asyncio.sleep(after)
        await scene.reconnector.aclose()
        assert now() == pytest.approx(after)
        assert scene.reconnector.state is ReconnectState.CLOSED
        (ended,) = await asyncio.gather(waiting, return_exceptions=True)
        if after < 3:
            assert isinstance(ended, ClosedError)
            assert str(ended) == "consumer 1: it is closed"
            assert not scene.is_attached
        with pytest.raises(ClosedError):
            await scene.reconnector.wait_ready()
        await scene.reconnector.aclose()
        count = len(scene.events)
        await asyncio.sleep(100)
        assert len(scene.events) == count


async def test_aclose_during_a_pause() -> None:
    async with Scene() as scene:
        scene.lookups = [LOST] * 8
        await asyncio.sleep(5)
        await scene.reconnector.aclose()
        assert now() == pytest.approx(5.0)


async def test_a_loss_after_the_close_changes_nothing() -> None:
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        connection = scene.connection
        await scene.reconnector.aclose()
        scene.reconnector.lost(connection, LOST)
        scene.reconnector.fail(LOST)
        assert scene.reconnector.state is ReconnectState.CLOSED
        assert scene.happened("detached") == scene.happened("failed") == []
        with pytest.raises(ClosedError):
            await scene.reconnector.wait_ready()


async def test_aclose_from_inside_an_attempt() -> None:
    async with Scene() as scene:

        async def attach(connection: FakeConnection, epoch: int) -> None:
            await scene.reconnector.aclose()

        scene.attach = attach  # type: ignore[method-assign]
        with pytest.raises(ClosedError):
            await scene.reconnector.wait_ready()
        await asyncio.sleep(1)
        assert scene.reconnector._task is not None
        assert scene.reconnector._task.done()


async def test_aclose_before_the_start() -> None:
    scene = Scene()
    await scene.reconnector.aclose()
    with pytest.raises(ClosedError):
        await scene.reconnector.wait_ready()


# --- random sequences -------------------------------------------------------------------------------------------------

_ERRORS = (
    LOST,
    ConnectError("down"),
    RequestTimedOut("slow"),
    PulsarServerError(6, "SUBSCRIBE"),
    PulsarServerError(5, "SUBSCRIBE"),
    AuthenticationError("expired"),
    OSError("reset"),
)


def _outcome(rng: random.Random) -> Outcome:
    chance = rng.random()
    if chance < 0.4:
        return None
    return rng.choice([0.0, 0.01, 0.1, 1.0]) if chance < 0.7 else rng.choice(_ERRORS)


@pytest.mark.parametrize("seed", range(40))
async def test_random_events_never_run_two_attempts_and_end_attached(seed: int) -> None:
    """`Scene.attach` asserts that nothing is attached, or attaching, when it begins."""
    rng = random.Random(seed)
    async with Scene() as scene:
        await scene.reconnector.wait_ready()
        seen: list[FakeConnection] = []
        real = scene.attach

        async def attach(connection: FakeConnection, epoch: int) -> None:
            seen.append(connection)
            await real(connection, epoch)

        scene.attach = attach  # type: ignore[method-assign]
        seen.append(scene.connection)
        for _ in range(60):
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.01, 0.1, 0.5]))
            for planned in (scene.lookups, scene.opens, scene.attaches):
                planned.append(_outcome(rng))  # type: ignore[arg-type]
            connection = rng.choice(seen[-3:])
            scene.reconnector.lost(connection, LOST, rng.choice([None, None, B_URL, "nonsense"]))
            assert (scene.reconnector.connection is not None) is (
                scene.reconnector.state is ReconnectState.READY
            )
        scene.lookups.clear()
        scene.opens.clear()
        scene.attaches.clear()
        await scene.reconnector.wait_ready()
        assert scene.is_attached
        epochs = [epoch for _, epoch in scene.happened("attach")]
        assert epochs == list(range(len(epochs)))
        assert scene.happened("failed") == []
    assert scene.reconnector.state is ReconnectState.CLOSED
    assert not scene.attaching


@pytest.mark.parametrize("seed", range(10))
async def test_random_ends(seed: int) -> None:
    """After `fail` or `aclose` at any moment nothing runs, and all who wait get the error."""
    rng = random.Random(seed)
    async with Scene() as scene:
        for planned in (scene.lookups, scene.opens, scene.attaches):
            planned += [_outcome(rng) for _ in range(5)]  # type: ignore[list-item]
        waiting = [asyncio.create_task(scene.reconnector.wait_ready()) for _ in range(3)]
        await asyncio.sleep(rng.random() * 4)
        if rng.random() < 0.5:
            scene.reconnector.fail(LOST)
        else:
            await scene.reconnector.aclose()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert scene.reconnector.state in (ReconnectState.CLOSED, ReconnectState.FAILED)
        await asyncio.sleep(0)
        count = len(scene.events)
        await asyncio.sleep(100)
        assert len(scene.events) == count
