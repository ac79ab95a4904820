"""Which consumers of a Key_Shared subscription have which keys."""

from __future__ import annotations

import pytest

from asyncgroup.pulsar_broker.subscriptions.key_selectors import ConsistentSelector
from tests.pulsar_broker.subscriptions.key_owners import KEYS, OWNERS


def owners(selector: ConsistentSelector) -> str:
    return "".join(str(selector.owner(selector.hash_of(key))) for key in KEYS)


@pytest.mark.parametrize("names", OWNERS)
def test_keys_belong_to_names(names: tuple[str, ...]) -> None:
    selector = ConsistentSelector()
    assert selector.owner(1) is None
    for number, name in enumerate(names):
        selector.add(number, name, [])
    assert owners(selector) == OWNERS[names]


def test_a_consumer_that_comes_back_has_the_keys_of_before() -> None:
    selector = ConsistentSelector()
    for number, name in enumerate(["x", "x", "y"]):
        selector.add(number, name, [])
    selector.remove(1)
    assert "1" not in owners(selector)
    selector.add(3, "x", [])
    assert owners(selector) == OWNERS["x", "x", "y"].replace("1", "3")
    for number in (0, 2, 3):
        selector.remove(number)
    assert selector.owner(1) is None
    assert (selector._points, selector._consumers, selector._used) == ([], {}, {})
