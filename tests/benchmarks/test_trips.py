"""The trace of trips: files and calls that come back are counted by its rules, and every program makes its trip."""

from __future__ import annotations

import asyncio
import json

import pytest

from asyncgroup.model import TopicPartition
from asyncgroup.wire import primitives
from benchmarks.trips import main
from benchmarks.trips.programs import TRIPS
from benchmarks.trips.trace import RECEIVED, Event, Trace, Trip


def call(file: str, caller: str = "") -> Event:
    return Event("call", file, "f", caller)


def resume(file: str) -> Event:
    return Event("resume", file, "f", "")


def files_and_backs(*events: Event, rooms: tuple[str, ...] = ("",)) -> tuple[list[str], int]:
    trip = Trip.of(events, rooms)
    return list(trip.files), len(trip.backs)


def test_the_files_are_in_the_order_in_which_control_came() -> None:
    assert files_and_backs(call("b"), call("a", "b"), call("c", "a")) == (["b", "a", "c"], 0)


def test_a_call_into_a_file_comes_back_unless_it_is_its_own() -> None:
    assert files_and_backs(call("a"), call("b", "a"), call("a", "b")) == (["a", "b"], 1)
    assert files_and_backs(call("a"), call("a", "a"), call("a", "a")) == (["a"], 0)
    assert files_and_backs(call("a"), call("b", "a"), call("b", "a")) == (["a", "b"], 1)


def test_the_event_loop_comes_back_by_a_call_and_not_by_an_await_that_ends() -> None:
    assert files_and_backs(call("a"), resume("a"), resume("b")) == (["a", "b"], 0)
    assert files_and_backs(call("a"), call("a")) == (["a"], 1)


def test_other_rooms_and_points_are_no_files() -> None:
    point = Event("point", "", "p", "")
    assert files_and_backs(call("a/x"), point, call("b/x", "a/x"), call("a/x", "b/x"), rooms=("a/",)) == (
        ["a/x"],
        1,
    )


async def _twice(trace: Trace) -> None:
    trace.point("begin")
    primitives.uvarint(300)
    await asyncio.sleep(0)
    trace.point("end")


def test_functions_of_the_package_are_traced_between_points() -> None:
    with Trace() as trace:
        asyncio.run(_twice(trace))
        TopicPartition("t", 0)
    [events] = trace.trips("begin", "end")
    assert [each for each in events if each.kind != "point"] == [
        Event("call", "wire/primitives.py", "uvarint", "")
    ]
    assert trace.trips("end", "begin") == []


def test_from_the_first_point_or_the_last_one() -> None:
    trace = Trace()
    for name in ("a", "b", "b", "z", "z", "b", "z"):
        trace.point(name)
        trace.events.append(call(f"after {name}"))
    first = [[each.file for each in events] for events in trace.trips("b", "z")]
    last = [[each.file for each in events] for events in trace.trips("b", "z", last=True)]
    assert first == [["after b", "after b"], ["after b"]]
    assert last == [["after b"], ["after b"]]


def test_a_point_before_another_one() -> None:
    trace = Trace()
    for name in (RECEIVED, "x", RECEIVED, "y"):
        trace.point(name)
    trace.point("here", before=RECEIVED)
    assert [each.function for each in trace.events] == [RECEIVED, "x", "here", RECEIVED, "y"]


@pytest.mark.parametrize("name", TRIPS)
def test_every_program_makes_its_trip(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trips", name, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == [name]
    assert len(figures[name]["files"]) >= 5
    assert figures[name]["files"][0].startswith(TRIPS[name].rooms)


def test_a_check_fails_beyond_the_goal(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--trips", "send", "--check", "--files"])
    printed = capsys.readouterr().out
    files = int(printed.split("producer.send to Produce │")[1].split("│")[0])
    assert code == (files > TRIPS["send"].goal)
    assert "producer/producer.py" in printed
