"""The state transitions of a classic group, against the table of Kafka's `ClassicGroupState`."""

from __future__ import annotations

import pytest

from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState

ALLOWED = {
    ("PreparingRebalance", "Empty"),
    ("Stable", "PreparingRebalance"),
    ("CompletingRebalance", "PreparingRebalance"),
    ("Empty", "PreparingRebalance"),
    ("PreparingRebalance", "CompletingRebalance"),
    ("CompletingRebalance", "Stable"),
    *((str(state), "Dead") for state in ClassicGroupState),
}


@pytest.mark.parametrize("old", ClassicGroupState, ids=str)
@pytest.mark.parametrize("new", ClassicGroupState, ids=str)
def test_transition(old, new):
    group = ClassicGroup("g")
    group.state = old
    if (str(old), str(new)) in ALLOWED:
        group.transition_to(new)
        assert (group.state, group.previous_state) == (new, old)
    else:
        with pytest.raises(RuntimeError, match=f"from {old} to {new}"):
            group.transition_to(new)
        assert group.state is old
