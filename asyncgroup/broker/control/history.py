"""History of requests and responses, in the order in which the requests arrived: queries, and the story as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from asyncgroup.broker.control.message_fields import (
    TopicName,
    group_ids_in,
    parse_error_code,
    topic_names_in,
)
from asyncgroup.broker.control.recorder import Exchange, ExchangeRecorder, summary
from asyncgroup.errors import UsageError
from asyncgroup.wire.protocol import API_BY_NAME

__all__ = ["History", "fold_repeats"]

MAX_BLOCK_LINES: Final = 4
"""Length in lines of the longest block whose repetition is detected."""


class History:
    """The last exchanges, oldest first, within the limits `history_limit` and `history_bytes` of the cluster."""

    def __init__(self, recorder: ExchangeRecorder, topic_name: TopicName = lambda _: None) -> None:
        self._recorder = recorder
        self._topic_name = topic_name

    def __repr__(self) -> str:
        recorder = self._recorder
        return (
            f"<History {len(self)} of at most {recorder.limit} exchanges, "
            f"{self.bytes} of at most {recorder.max_bytes} bytes, {self.dropped} dropped>"
        )

    def __len__(self) -> int:
        return len(self._recorder.exchanges)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(list(self._recorder.exchanges))

    def __getitem__(self, index: int) -> Exchange:
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

    def of(
        self,
        *apis: str,
        node: int | None = None,
        client_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        error: int | str | None = None,
        answered: bool | None = None,
        since: float | None = None,
    ) -> list[Exchange]:
        """Return the exchanges of these APIs (default: all) that match all arguments given.

        `group` and `topic`: named anywhere in the request or response (a Fetch within a session names only changed
        partitions). `error`: a code or its name, found anywhere in the response. `answered`: with a response, or
        without. `since`: arrived at this loop time or later. Raise UsageError for an unknown API.
        """
        if unknown := [api for api in apis if api not in API_BY_NAME]:
            raise UsageError(f"unknown API {unknown[0]!r}; the APIs are {', '.join(sorted(API_BY_NAME))}")
        code = None if error is None else parse_error_code(error, "error")
        return [
            exchange
            for exchange in self._recorder.exchanges
            if (not apis or exchange.api in apis)
            and (node is None or exchange.node_id == node)
            and (client_id is None or exchange.client_id == client_id)
            and (since is None or exchange.time >= since)
            and (answered is None or (exchange.answered_at is not None) == answered)
            and (group is None or group in group_ids_in(exchange.request))
            and (topic is None or topic in self._topics(exchange))
            and (code is None or code in exchange.errors)
        ]

    def _topics(self, exchange: Exchange) -> set[str]:
        named = topic_names_in(exchange.request, self._topic_name)
        return named | topic_names_in(exchange.response, self._topic_name)

    async def wait_for(self, *apis: str, count: int = 1, **named: Any) -> list[Exchange]:
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
        topics = [self._topics(exchange) for exchange in shown]
        lines = [exchange.line(names) for exchange, names in zip(shown, topics, strict=True)]
        if fold:
            keys = [summary(exchange, names) for exchange, names in zip(shown, topics, strict=True)]
            lines = fold_repeats(lines, keys, [f"{exchange.time:.3f}" for exchange in shown])
            lines = lines[-last if last else 0 :]
        if self.dropped and len(shown) == len(exchanges):
            bounds = f"history_limit={self._recorder.limit}, history_bytes={self._recorder.max_bytes}"
            lines.insert(0, f"({self.dropped} earlier exchanges were dropped: {bounds})")
        return "\n".join(lines)


def fold_repeats(lines: Sequence[str], keys: Sequence[str], times: Sequence[str]) -> list[str]:
    """Return the lines with repeated blocks of 1 to MAX_BLOCK_LINES lines folded; lines with equal `keys` are equal.

    The first block is shown, followed by a line with the number of repetitions and the time of the last (`times`).
    """
    shown: list[str] = []
    at = 0
    while at < len(lines):
        length, times_seen = _repetition(keys, at)
        shown += lines[at : at + length]
        end = at + length * times_seen
        if times_seen > 1:
            what = "this line" if length == 1 else f"these {length} lines"
            shown.append(f"            … {what} {times_seen} times in all, until {times[end - 1]}")
        at = end
    return shown


def _repetition(keys: Sequence[str], at: int) -> tuple[int, int]:
    """Return (length, count) of the repeated block at `at`, chosen so that the fewest lines remain."""
    best = (1, 1)
    for length in range(1, MAX_BLOCK_LINES + 1):
        block, count = keys[at : at + length], 1
        while keys[at + count * length : at + (count + 1) * length] == block:
            count += 1
        # folding adds one line, so a single line that occurs twice is not folded
        saved = (count - 1) * length - 1
        if saved > max(0, (best[1] - 1) * best[0] - 1):
            best = (length, count)
    return best
