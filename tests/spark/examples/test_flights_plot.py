"""The plot of the flights pipeline, parsed as XML."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from asyncgroup.spark.examples.flights.plot import HourOfDay, delay_by_hour_svg

SVG = "{http://www.w3.org/2000/svg}"
NAMES = {"UA": "United Air Lines Inc.", "AT": "AT&T <Air> Co."}


def drawn(rows: list[HourOfDay]) -> ElementTree.Element:
    return ElementTree.fromstring(delay_by_hour_svg(rows, NAMES))


def points(picture: ElementTree.Element, name: str) -> list[tuple[float, float]]:
    (line,) = [each for each in picture.iter(f"{SVG}polyline") if each.findtext(f"{SVG}title") == name]
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", line.get("points", ""))]


def words(picture: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in picture.iter(f"{SVG}text")]


def test_lines_fit_the_axes() -> None:
    picture = drawn(
        [HourOfDay("UA", 6, 100, 0), HourOfDay("UA", 8, 100, 1_000), HourOfDay("UA", 9, 100, 500)]
    )
    levels = {
        each.text: float(each.get("y", "")) - 4
        for each in picture.iter(f"{SVG}text")
        if (each.text or "").endswith(" min")
    }
    assert list(levels) == ["0 min", "5 min", "10 min"]
    hours = {
        each.text: float(each.get("x", ""))
        for each in picture.iter(f"{SVG}text")
        if (each.text or "").isdigit()
    }
    assert list(hours) == ["6", "7", "8", "9"]
    wanted = [(hours["6"], levels["0 min"]), (hours["8"], levels["10 min"]), (hours["9"], levels["5 min"])]
    for name in ("United Air Lines", "all carriers"):
        assert points(picture, name) == [pytest.approx(point, abs=0.11) for point in wanted]


def test_all_carriers_together_are_weighted_by_their_flights() -> None:
    picture = drawn([HourOfDay("UA", 6, 300, 0), HourOfDay("AT", 6, 100, 4_000), HourOfDay("UA", 7, 1, 40)])
    heights = {each.text: float(each.get("y", "")) - 4 for each in picture.iter(f"{SVG}text")}
    assert points(picture, "all carriers")[0][1] == pytest.approx(heights["10 min"], abs=0.11)


def test_names_are_escaped() -> None:
    picture = drawn([HourOfDay("AT", 6, 100, 500)])
    assert "AT&T <Air>" in words(picture)
    assert "(100 departures)" in " ".join(words(picture))


def test_hours_with_few_flights_of_a_carrier_have_no_point() -> None:
    picture = drawn([HourOfDay("UA", 6, 100, 500), HourOfDay("UA", 7, 2, 900), HourOfDay("AT", 7, 29, 0)])
    assert len(points(picture, "United Air Lines")) == 1
    assert len(points(picture, "all carriers")) == 2
    assert "AT&T <Air>" not in words(picture)


def test_names_do_not_overlap() -> None:
    picture = drawn([HourOfDay(f"C{n}", hour, 100, 100 * n) for n in range(12) for hour in (6, 7)])
    ends = [float(each.get("y", "")) for each in picture.iter(f"{SVG}text") if each.get("class") == "name"]
    assert len(ends) == 7  # six carriers and the line of all carriers
    assert min(b - a for a, b in itertools.pairwise(ends)) >= 16.9


def test_negative_and_huge_delays_fit() -> None:
    picture = drawn([HourOfDay("UA", 6, 100, -1_700), HourOfDay("UA", 7, 100, 90_000)])
    assert "-100 min" in words(picture)
    assert all(0 < y < 520 for _, y in points(picture, "all carriers"))


@pytest.mark.parametrize("rows", [[], [HourOfDay("UA", 6, 0, 0)]])
def test_no_departures_are_an_error(rows: list[HourOfDay]) -> None:
    with pytest.raises(ValueError, match="no departures"):
        delay_by_hour_svg(rows, NAMES)
