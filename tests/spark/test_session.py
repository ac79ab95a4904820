"""What the messages say where Spark cannot run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

import pytest

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.java import JavaNotFound
from asyncgroup.spark import SparkUnavailable, local_session, session


class Versions:
    """Says which packages are installed; None: not at all, "": without metadata."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
        self._versions = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3", **versions}
        monkeypatch.setattr(importlib.util, "find_spec", self._find_spec)
        monkeypatch.setattr(importlib.metadata, "version", self._version)

    def _find_spec(self, name: str) -> object | None:
        return None if self._versions[name] is None else object()

    def _version(self, name: str) -> str:
        if not (version := self._versions[name]):
            raise importlib.metadata.PackageNotFoundError(name)
        return version


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"pyspark": None}, ["pyspark is not installed", "pip install 'asyncgroup[spark]'"]),
        ({"pyarrow": None}, ["pyarrow is not installed", "pip install 'asyncgroup[spark]'"]),
        ({"pyspark": "4.1.1"}, ["pyspark 4.1.1 is too old", "4.2 or later"]),
        ({"pyarrow": "17.0.0"}, ["pyarrow 17.0.0 is too old", "18 or later"]),
        ({"pandas": "3.1.1"}, ["does not support pandas 3.1.1", "pandas>=2.2,<3"]),
    ],
)
def test_what_is_missing_is_named_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str | None], words: list[str]
) -> None:
    Versions(monkeypatch, **versions)
    with pytest.raises(SparkUnavailable) as caught:
        local_session()
    assert isinstance(caught.value, AsyncGroupError)
    for each in words:
        assert each in str(caught.value)


@pytest.mark.parametrize("versions", [{}, {"pandas": None}, {"pyspark": ""}, {"pyspark": "4.2.0.dev3"}])
def test_what_will_do_is_let_pass(monkeypatch: pytest.MonkeyPatch, versions: dict[str, Any]) -> None:
    Versions(monkeypatch, **versions)
    session._check_packages()


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(purpose: str) -> None:
        raise JavaNotFound(f"Java is needed to {purpose}")

    monkeypatch.setattr(session, "require_java", none)
    with pytest.raises(JavaNotFound, match="needed to run Spark"):
        local_session()


def test_cores_are_checked() -> None:
    with pytest.raises(ConfigError, match="cores"):
        local_session(cores=0)
