"""The one way into a cluster's private state, for tests of what its public methods do not show."""

from __future__ import annotations

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.storage.data_directory import DataDirectory
from asyncgroup.broker.transactions.coordinator import TransactionCoordinator

__all__ = ["controller_of", "data_of", "transactions_of"]


def controller_of(cluster: EmbeddedCluster) -> Controller:
    """Return the controller."""
    return cluster._state.controller


def transactions_of(cluster: EmbeddedCluster) -> TransactionCoordinator:
    """Return the transaction coordinator of a running cluster."""
    return cluster._state.transactions


def data_of(cluster: EmbeddedCluster) -> DataDirectory:
    """Return the data directory of a running cluster on disk."""
    assert cluster._runtime.data is not None
    return cluster._runtime.data
