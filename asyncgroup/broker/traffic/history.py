"""TrafficHistory: requests and responses in the order in which the requests arrived, and their story as text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterator
from typing import Any, Generic, TypeVar

from asyncgroup.broker.traffic.folding import fold_repeats
from asyncgroup.broker.traffic.recorder import RecordedExchange, TrafficRecorder

__all__ = ["TrafficHistory", "timed_line"]

ExchangeT = TypeVar("ExchangeT", bound=RecordedExchange)
"""The exchanges of a protocol."""


class TrafficHistory(Generic[ExchangeT]):
    """The last exchanges, oldest first, within the limits of their recorder. A protocol adds what its messages tell."""

    def __init__(self, recorder: TrafficRecorder[ExchangeT]) -> None:
        self._recorder = recorder

    def __repr__(self) -> str:
        recorder = self._recorder
        return (
            f"<{type(self).__name__} {len(self)} of at most {recorder.limit} exchanges, "
            f"{self.bytes} of at most {recorder.max_bytes} bytes, {self.dropped} dropped>"
        )

    def __len__(self) -> int:
        return len(self._recorder.exchanges)

    def __iter__(self) -> Iterator[ExchangeT]:
        return iter(list(self._recorder.exchanges))

    def __getitem__(self, index: int) -> ExchangeT:
        return self._recorder.exchanges[index]

    @property
    def bytes(self) -> int:
        """Estimated memory of the exchanges."""
        return self._recorder.bytes

    @property
    def dropped(self) -> int:
        """The number of exchanges dropped at the limits since the start or the last `clear`."""
        return self._recorder.dropped

    @property
    def recording(self) -> bool:
        """Whether requests are recorded; may be switched off and on."""
        return self._recorder.recording

    @recording.setter
    def recording(self, recording: bool) -> None:
        self._recorder.recording = recording

    def clear(self) -> None:
        """Remove all exchanges and reset `dropped`."""
        self._recorder.clear()

    @abstractmethod
    def of(self, *apis: Any, **named: Any) -> list[ExchangeT]:
        """Return the exchanges of these APIs (default: all) that match all arguments given."""

    @abstractmethod
    def _summary(self, exchange: ExchangeT) -> str:
        """Return the line of an exchange without its times."""

    def _matching(
        self,
        apis: Container[str],
        *,
        node: int | None,
        client_id: str | None,
        answered: bool | None,
        since: float | None,
    ) -> Iterator[ExchangeT]:
        """Return the exchanges that match what no message is needed for; without `apis`, of all of them."""
        return (
            exchange
            for exchange in self._recorder.exchanges
            if (not apis or exchange.api in apis)
            and (node is None or exchange.node_id == node)
            and (client_id is None or exchange.client_id == client_id)
            and (since is None or exchange.time >= since)
            and (answered is None or (exchange.answered_at is not None) == answered)
        )

    async def wait_for(self, *apis: str, count: int = 1, **named: Any) -> list[ExchangeT]:
        """Wait until `count` exchanges match, and return all that do; arguments as for `of`.

        There is no time limit; use `asyncio.timeout`.
        """
        while len(found := self.of(*apis, **named)) < count:
            await self._recorder.wait_until(lambda: len(self.of(*apis, **named)) >= count)
        return found

    def story(self, last: int | None = None, *, fold: bool = False) -> str:
        """Return all exchanges, or the `last` ones, as text, one per line.

        `fold` shows repeated lines that differ only in their times once; `last` then counts folded lines. If all
        exchanges are shown, the first line says how many were dropped before them.
        """
        exchanges = list(self)
        shown = exchanges if fold else exchanges[-last if last else 0 :]
        texts = [self._summary(exchange) for exchange in shown]
        lines = [timed_line(exchange, text) for exchange, text in zip(shown, texts, strict=True)]
        if fold:
            lines = fold_repeats(lines, texts, [f"{exchange.time:.3f}" for exchange in shown])
            lines = lines[-last if last else 0 :]
        if self.dropped and len(shown) == len(exchanges):
            bounds = f"history_limit={self._recorder.limit}, history_bytes={self._recorder.max_bytes}"
            lines.insert(0, f"({self.dropped} earlier exchanges were dropped: {bounds})")
        return "\n".join(lines)


def timed_line(exchange: RecordedExchange, text: str) -> str:
    """Return `text` after the time of an exchange and before its duration."""
    after = "" if exchange.duration is None else f" after {exchange.duration:.3f} s"
    return f"{exchange.time:10.3f}  {text}{after}"
