"""ServerFailure: a request that a broker answers with an error."""

from __future__ import annotations

from asyncgroup.pulsar.wire.server_errors import ServerError

__all__ = ["ServerFailure"]


class ServerFailure(Exception):
    """An error of Pulsar's protocol, with the text that the client gets."""

    def __init__(self, code: ServerError, text: str) -> None:
        super().__init__(f"{code.published_name}: {text}")
        self.code = code
        self.text = text
