"""History of requests and responses, in the order in which the requests arrived: queries by Kafka's names."""

from __future__ import annotations

from asyncgroup.broker.control.message_fields import (
    TopicName,
    group_ids_in,
    parse_error_code,
    topic_names_in,
)
from asyncgroup.broker.control.recorder import Exchange, ExchangeRecorder, summary
from asyncgroup.broker.traffic.history import TrafficHistory
from asyncgroup.errors import UsageError
from asyncgroup.wire.apis import API_BY_NAME

__all__ = ["History"]


class History(TrafficHistory[Exchange]):
    """The last exchanges, oldest first, within the limits `history_limit` and `history_bytes` of the cluster."""

    def __init__(self, recorder: ExchangeRecorder, topic_name: TopicName = lambda _: None) -> None:
        super().__init__(recorder)
        self._topic_name = topic_name

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
            for exchange in self._matching(
                apis, node=node, client_id=client_id, answered=answered, since=since
            )
            if (group is None or group in group_ids_in(exchange.request))
            and (topic is None or topic in self._topics(exchange))
            and (code is None or code in exchange.errors)
        ]

    def _topics(self, exchange: Exchange) -> set[str]:
        named = topic_names_in(exchange.request, self._topic_name)
        return named | topic_names_in(exchange.response, self._topic_name)

    def _summary(self, exchange: Exchange) -> str:
        return summary(exchange, self._topics(exchange))
