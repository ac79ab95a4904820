"""ServerFailure: a request that a broker answers with an error."""

from __future__ import annotations

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar.wire.server_errors import ServerError

__all__ = ["ServerFailure"]


class ServerFailure(AsyncGroupError):
    """A request, or a call of a test, is refused: the error of Pulsar's protocol, `code`, and the text that a client gets."""

    def __init__(self, code: ServerError, text: str) -> None:
        super().__init__(f"{code.published_name}: {text}")
        self.code = code
        self.text = text
