"""AdminResults: a mapping of values and errors that its readers cannot change."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from asyncgroup.admin import AdminResults
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import AsyncGroupError, UsageError


def test_values_and_errors_by_name() -> None:
    failed: AsyncGroupError = UsageError("no")
    found = AdminResults(Results({"a": 1}, {"b": failed}))
    assert (dict(found), found.values_by_name, found.errors) == (
        {"a": 1, "b": failed},
        {"a": 1},
        {"b": failed},
    )
    assert repr(found) == f"<AdminResults: {{'a': 1}}, errors {{'b': {failed!r}}}>"
    with pytest.raises(UsageError, match="no"):
        found.raise_first()


@pytest.mark.parametrize("view", ["values_by_name", "errors", "raise_first"])
def test_no_view_can_be_changed(view: str) -> None:
    found: Any = AdminResults(Results({"a": 1}))
    mapping = getattr(found, view)
    mapping = mapping() if view == "raise_first" else mapping
    with pytest.raises(TypeError, match="does not support item assignment"):
        operator.setitem(mapping, "a", 2)
    assert found["a"] == 1
