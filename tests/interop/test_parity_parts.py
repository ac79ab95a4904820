"""The parts of the comparison of two brokers (`test_parity`): it must not miss a difference."""

from __future__ import annotations

import uuid

from asyncgroup.broker.log.control_batches import control_batch
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import ControlType
from tests.broker.batches import batch
from tests.interop.parity.compare import Difference, Explained, differences, unexplained
from tests.interop.parity.plain import Names, paths, plain
from tests.interop.parity.scene import Scene


def scene(**answers: object) -> Scene:
    result = Scene({}, {}, "highest", "-x")
    for label, answer in answers.items():
        result.keep(label, answer, 1)
    return result


def test_generated_ids_are_compared_by_identity() -> None:
    names, ids = Names("-x"), [f"client-{uuid.UUID(int=number)}" for number in (7, 8)]
    first, second, again = (plain(m.JoinGroupResponse(member_id=i), names) for i in (*ids, ids[0]))
    assert first["member_id"] == again["member_id"] == "<member 1>"
    assert second["member_id"] == "<member 2>"
    assert plain(m.JoinGroupResponse(member_id="typed-x"), names)["member_id"] == "typed~"


def test_broker_specific_values_are_replaced() -> None:
    kept = plain(m.FindCoordinatorResponse(9, 15, "in its own words", 1, "h", 4711), Names("-x"))
    assert "throttle_time_ms" not in kept
    assert (kept["error_code"], kept["error_message"], kept["port"]) == (
        "COORDINATOR_NOT_AVAILABLE",
        "<said>",
        "<port>",
    )
    assert kept["node_id"] == 1


def test_records_are_compared_as_records() -> None:
    response = m.FetchResponse.PartitionData(records=batch(b"a") + control_batch(ControlType.ABORT, 5, 0))
    first, marker = plain(response, Names("-x"))["records"]
    assert first["records"] == [(0, b"k", b"a", ())]
    assert marker["control"] == str(ControlType.ABORT)
    assert "timestamps" not in marker


def test_every_field_has_a_path() -> None:
    assert dict(paths({"a": [{"b": 1}, {"b": 2}], "c": [], "d": {}})) == {
        "a[0].b": 1,
        "a[1].b": 2,
        "c": [],
        "d": {},
    }


def test_different_and_missing_fields_are_found() -> None:
    ours = scene(
        same=m.HeartbeatResponse(1, 0),
        other=m.HeartbeatResponse(0, 25),
        more=m.HeartbeatResponse(),
        gone=None,
    )
    theirs = scene(
        same=m.HeartbeatResponse(2, 0), other=m.HeartbeatResponse(0, 22), gone=m.HeartbeatResponse()
    )
    found = list(differences("story", ours, theirs))
    assert Difference("story/other v1", "error_code", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION") in found
    assert {each.where for each in found} == {"story/other v1", "story/more v1", "story/gone v1"}


def test_only_explained_differences_are_left_out() -> None:
    one, other = Difference("s/a v1", "x[0].y", 1, 2), Difference("s/b v1", "x[0].y", 1, 2)
    assert unexplained([one, other], [Explained("s/a *", "x[[]0].y", "why")]) == [other]
    assert unexplained([one], [Explained("s/a *", "x[[]0].y", "why", ours=5)]) == [one]
    assert unexplained([one], [Explained("s/a *", "x[[]*].y", "why", ours=1, theirs=2)]) == []
