"""The finalized features of a cluster (KIP-584), by the newest response to ApiVersions of any broker."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FinalizedFeatures"]


class FinalizedFeatures:
    """The highest level of each finalized feature. Responses with an older epoch are ignored.

    As `ApiVersions.maxFinalizedFeaturesEpoch` in Java. Brokers send the features when a connection is opened, so a change is
    seen at the next new connection to any of them.
    """

    __slots__ = ("_epoch", "_levels")

    def __init__(self) -> None:
        self._epoch = -1
        self._levels: Mapping[str, int] = {}

    def __repr__(self) -> str:
        return f"<FinalizedFeatures of epoch {self._epoch}: {self._levels}>"

    def update(self, epoch: int, levels: Mapping[str, int]) -> None:
        """Use the features of a response, unless those of a later epoch are known; epoch -1 means that it has none."""
        if epoch >= self._epoch:
            self._epoch, self._levels = epoch, levels

    def level(self, name: str) -> int:
        """Return the highest level of a feature; 0 if the cluster has not finalized it."""
        return self._levels.get(name, 0)
