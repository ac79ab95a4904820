"""Source: what a work queue reads, as a value that a user makes; it knows which engine reads it.

`GroupSource` is a consumer group (`group_engine/source.py`), `PulsarSource` a subscription of Pulsar (`pulsar_engine/source.py`), `MemorySource` a list in memory for tests
(`testing/memory_engine.py`). A queue asks its source once for a SourcePlan, which has checked everything, and the plan for an
engine when it is entered. No engine is imported here: `WorkQueue(servers, group, topics)` loads a source by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from asyncgroup.errors import ConfigError
from asyncgroup.model import MillisClock
from asyncgroup.workqueue.engine import Engine, EngineFeatures
from asyncgroup.workqueue.settings import QueueSettings

if TYPE_CHECKING:
    from asyncgroup.config import ConsumerConfig

__all__ = ["Source", "SourcePlan", "check_features", "group_source", "is_source"]

_GROUP: Final = "asyncgroup.workqueue.group_engine.source"

_PULSAR: Final = "asyncgroup.workqueue.pulsar_engine.source"

_SCHEMES: Final = (
    "host:port without a scheme for a consumer group of Kafka; pulsar:// or pulsar+ssl:// for Pulsar"
)


class SourcePlan(Protocol):
    """A source that was checked for a queue."""

    @property
    def retry_topic(self) -> str | None:
        """The topic of `Delivery.reconsume_later`; None without one."""
        ...

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of dead letters; None without one."""
        ...

    @property
    def config(self) -> ConsumerConfig | None:
        """The configuration of the consumer group; None of other sources."""
        ...

    async def load_engine(self) -> Callable[[Any, QueueSettings, MillisClock], Engine]:
        """Import the engine, without blocking the event loop for long; return what makes it.

        It is called with this plan, the settings, and a clock that returns the time of day in ms.
        """
        ...


class Source(Protocol):
    """What a work queue reads."""

    @property
    def features(self) -> EngineFeatures:
        """What its engine can do."""
        ...

    @property
    def subscription(self) -> str:
        """The name of the subscription: of a consumer group its id."""
        ...

    def plan(self, settings: QueueSettings) -> SourcePlan:
        """Check the source for a queue with these settings. Raises ConfigError."""
        ...


def is_source(value: object) -> bool:
    """Whether a value is a source, and not the bootstrap servers of a consumer group."""
    return not isinstance(value, str | bytes | type) and callable(getattr(value, "plan", None))


def group_source(
    servers: Any, group_id: Any, topics: Any, *, config: Any = None, hooks: Iterable[object] = ()
) -> Source:
    """Return the source of `WorkQueue(servers, group, topics)`: a PulsarSource for a URL of Pulsar, else a GroupSource. Raises ConfigError."""
    name = (_GROUP, "GroupSource")
    if isinstance(servers, str) and "://" in servers and "@" not in servers:
        if not servers.startswith(("pulsar://", "pulsar+ssl://")):
            raise ConfigError("bootstrap_servers", servers, _SCHEMES)
        name = (_PULSAR, "PulsarSource")
    make: Callable[..., Source] = getattr(import_module(name[0]), name[1])
    return make(servers, group_id, topics, config=config, hooks=hooks)


# --- settings that need a feature of the engine -----------------------------------------------------------------------------


class _Need(NamedTuple):
    setting: str
    is_met: Callable[[QueueSettings, EngineFeatures], bool]
    allowed: str


_NEEDS: Final = (
    _Need("mode", lambda settings, can: settings.mode in can.modes, "one of the modes of {}: {}"),
    _Need(
        "retry", lambda settings, can: settings.retry is None or can.copies, "None: {} has no retry topics"
    ),
    _Need(
        "dead_letter",
        lambda settings, can: settings.dead_letter is None or can.copies,
        "None: {} has no dead letter topics",
    ),
)


def check_features(settings: QueueSettings, source: Source) -> None:
    """Raise ConfigError for a setting that needs what the engine of the source does not have, with the reason."""
    can = source.features
    for need in _NEEDS:
        if not need.is_met(settings, can):
            modes = ", ".join(mode.value for mode in can.modes)
            allowed = need.allowed.format(type(source).__name__, modes)
            raise ConfigError(need.setting, getattr(settings, need.setting), allowed)
