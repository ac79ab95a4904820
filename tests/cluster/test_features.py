"""FinalizedFeatures: the newest levels of all responses to ApiVersions."""

from __future__ import annotations

from asyncgroup.cluster.features import FinalizedFeatures


def test_the_newest_epoch_wins() -> None:
    features = FinalizedFeatures()
    assert features.level("transaction.version") == 0
    features.update(7, {"transaction.version": 2})
    features.update(6, {"transaction.version": 1})
    features.update(-1, {})  # a broker that does not know them yet
    assert features.level("transaction.version") == 2
    features.update(8, {"group.version": 1})
    assert (features.level("transaction.version"), features.level("group.version")) == (0, 1)
    assert repr(features) == "<FinalizedFeatures of epoch 8: {'group.version': 1}>"
