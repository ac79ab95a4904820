"""The requests to an embedded Pulsar: their history, and faults that tests inject.

    pulsar.faults.on("Subscribe", topic="orders").error("ServiceNotReady")
    pulsar.faults.on("Send", nth=3).disconnect("after")
    await pulsar.history.wait_for("Ack", subscription="billing")

A request is named as its command in `PulsarApi.proto`: `Connect`, `LookupTopic`, `Producer`, `Send`, `Subscribe`, `Flow`, `Ack`, …. What the
brokers send by themselves, such as messages, is no answer: it is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, Never, Self

from asyncgroup.broker.traffic.fault import RequestFault
from asyncgroup.broker.traffic.history import TrafficHistory
from asyncgroup.broker.traffic.injection import Injection, Injector
from asyncgroup.broker.traffic.matching import check_counts, check_no_actions, request_filter
from asyncgroup.broker.traffic.recorder import RecordedExchange, TrafficRecorder
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.escaping import printable
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = [
    "PulsarExchange",
    "PulsarFault",
    "PulsarFaults",
    "PulsarHistory",
    "PulsarRecorder",
    "PulsarRequest",
]

COMMANDS: Final = frozenset(cls.__name__.removeprefix("Command") for cls in c.COMMANDS.values())
"""The names of all commands."""

ONE_WAY: Final = frozenset({"Flow", "Pong", "RedeliverUnacknowledgedMessages"})
"""Commands that have no answer. An `Ack` has one if its client asks for it."""

_CODES: Final = {code.published_name: code for code in ServerError}
_BYTES: Final = 1024
_BYTES_PER_BYTE: Final = 16
"""Estimated memory of a command, by the size of its frame without payload."""


@dataclass(slots=True)
class PulsarRequest:
    """What is known of a request besides its command. `topic` and `subscription` are also those of a producer or consumer by its id."""

    time: float
    node_id: int
    client_id: str
    """The version text that the client gives of itself."""
    connection: int
    api: str
    topic: TopicName | None
    subscription: str | None
    api_version: int = 0


class PulsarExchange(RecordedExchange):
    """A request and its answer."""

    __slots__ = ("subscription", "topic")

    def __init__(self, info: PulsarRequest, request: Any, size: int) -> None:
        super().__init__(info, request, size)
        self.topic = info.topic
        self.subscription = info.subscription

    @property
    def error(self) -> ServerError | None:
        """The error of the answer; None without one."""
        code = getattr(self.response, "error", None)
        return None if code is None else ServerError(code)


class PulsarRecorder(TrafficRecorder[PulsarExchange]):
    """Keeps the last exchanges."""

    def __init__(self, limit: int, max_bytes: int) -> None:
        super().__init__(PulsarExchange, limit, max_bytes)

    def _retained_bytes(self, message: Any, frame_bytes: int) -> int:  # noqa: ARG002  it is not measured
        return _BYTES + _BYTES_PER_BYTE * frame_bytes


class PulsarHistory(TrafficHistory[PulsarExchange]):
    """The last exchanges, oldest first, within the limits of the EmbeddedPulsar."""

    def of(
        self,
        *apis: str,
        broker: int | None = None,
        client_id: str | None = None,
        topic: str | None = None,
        subscription: str | None = None,
        error: int | str | None = None,
        answered: bool | None = None,
        since: float | None = None,
    ) -> list[PulsarExchange]:
        """Return the exchanges of these commands (default: all) that match all arguments given.

        `topic` also matches its partitions. `error`: a code or its name (`ConsumerBusy`). Raises UsageError for an unknown command.
        """
        for api in apis:
            _check_api(api)
        name = None if topic is None else TopicName.parse(topic)
        code = None if error is None else _parse_code(error, "error")
        return [
            exchange
            for exchange in self._matching(
                apis, node=broker, client_id=client_id, answered=answered, since=since
            )
            if _is_of(exchange.topic, name)
            and (subscription is None or exchange.subscription == subscription)
            and (code is None or exchange.error is code)
        ]

    def _summary(self, exchange: PulsarExchange) -> str:
        names = [exchange.subscription, None if exchange.topic is None else exchange.topic.local_name]
        of = ", ".join(name for name in names if name)
        what = exchange.api + (f" of {printable(of)}" if of else "")
        if exchange.answered_at is None:
            is_one_way = exchange.api in ONE_WAY or (
                exchange.api == "Ack" and exchange.request.request_id is None
            )
            end = "no answer is due" if is_one_way else "no answer"
        else:
            end = "ok" if exchange.error is None else exchange.error.published_name
        return f"broker {exchange.node_id}  {printable(exchange.client_id or '-')}  {what}: {end}"


class PulsarFault(RequestFault[PulsarExchange]):
    """An injected fault, created by `PulsarFaults.on`. `hits` counts the requests hit; without an action it only counts them."""

    def __init__(self, injection: Injection, api: str | None) -> None:
        super().__init__(injection)
        self._api = api

    def error(self, code: int | str) -> Self:
        """Answer with this error, a code or its name, without handling the request."""
        if self._api in ONE_WAY:
            raise ConfigError("code", code, f"not for {self._api}, which has no answer")
        return self._fail_with(_parse_code(code, "code"))


class PulsarFaults:
    """The faults of an EmbeddedPulsar. If several match a request, the one created first acts on it."""

    def __init__(self, injector: Injector[Injection]) -> None:
        self._injector = injector
        self._faults: dict[Injection, PulsarFault] = {}

    def __repr__(self) -> str:
        return f"<PulsarFaults {len(self._injector.injections)}, {len(self.unused)} unused>"

    def on(
        self,
        api: str | None = None,
        *,
        broker: int | None = None,
        topic: str | None = None,
        subscription: str | None = None,
        client_id: str | None = None,
        where: Callable[[Any], object] | None = None,
        nth: int = 1,
        times: int | None = 1,
        **actions: Never,
    ) -> PulsarFault:
        """Create a fault for requests that match all arguments given; its methods set what happens.

        `topic` also matches its partitions; `where` is a predicate on the command. `nth` is the first matching request to hit (from
        1), `times` how many are hit from there (None: all). Raises UsageError for an unknown command.
        """
        if api is not None:
            _check_api(api)
        check_no_actions(PulsarFault, actions)
        check_counts(nth, times)
        name = None if topic is None else TopicName.parse(topic)

        def has_names(info: PulsarRequest, _: Any) -> bool:
            return _is_of(info.topic, name) and (subscription is None or info.subscription == subscription)

        matches = request_filter(api, node=broker, client_id=client_id, names=has_names, where=where)
        named = {
            "broker": broker,
            "topic": topic,
            "subscription": subscription,
            "client_id": client_id,
            "nth": nth,
        }
        shown = [f"{key}={value!r}" for key, value in named.items() if value is not None]
        injection = Injection(
            " ".join([api or "any request", *shown]),
            matches,
            nth,
            times,
            self._injector.failures.append,
            copy,
        )
        self._injector.injections.append(injection)
        fault = self._faults[injection] = PulsarFault(injection, api)
        return fault

    @property
    def unused(self) -> list[PulsarFault]:
        """The faults that were never hit though they had to be."""
        return [self._faults[each] for each in self._injector.injections if each.is_unused]

    def clear(self) -> None:
        """Remove all faults, including unused ones; held requests continue."""
        self._injector.clear()
        self._faults.clear()


def _check_api(api: str) -> None:
    if api not in COMMANDS:
        raise UsageError(f"unknown command {api!r}; the commands are {', '.join(sorted(COMMANDS))}")


def _parse_code(error: int | str, key: str) -> ServerError:
    try:
        return _CODES[error] if isinstance(error, str) else ServerError(error)
    except (KeyError, ValueError):
        raise ConfigError(
            key, error, f"one of Pulsar's error codes or its name: {', '.join(_CODES)}"
        ) from None


def _is_of(topic: TopicName | None, name: TopicName | None) -> bool:
    return name is None or (topic is not None and name in (topic, topic.whole))
