"""Fixtures of the tests of transactions."""

from __future__ import annotations

import pytest

from asyncgroup.broker.metadata.features import DEFAULT_LEVELS


@pytest.fixture(autouse=True)
def _transaction_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finalize the transaction version that the test's parameter `version` names."""
    call = getattr(request.node, "callspec", None)
    if call is not None and "version" in call.params:
        monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", call.params["version"])
