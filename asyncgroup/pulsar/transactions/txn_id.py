"""TxnId: the identity of a transaction."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TxnId"]


class TxnId(NamedTuple):
    """The id of a transaction: the number of its coordinator, and its number there. `str()` is Pulsar's form, `(0,7)`."""

    most_bits: int
    least_bits: int

    def __str__(self) -> str:
        return f"({self.most_bits},{self.least_bits})"
