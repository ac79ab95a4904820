"""The generator of message classes, and a check that the generated files are up to date."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from asyncgroup.wire import generate as generator, messages, tables
from asyncgroup.wire.classes import classes_source
from asyncgroup.wire.decoder import decoder_source
from asyncgroup.wire.generate import APIS, DATA, generate, message_files, table_text
from asyncgroup.wire.schema import parse_table
from tests.wire.kafka_files import kafka_jar

WIRE = Path(tables.__file__).parent


def generated_files() -> dict[str, str]:
    paths = [WIRE / "tables.py", *(WIRE / "messages").glob("*.py")]
    return {path.relative_to(WIRE).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_the_generated_files_are_up_to_date():
    assert generate([kafka_jar("kafka-clients"), kafka_jar("kafka-group-coordinator")]) == generated_files()


def test_the_classes_match_the_tables():
    """Without jars: neither the tables nor the classes were edited alone."""
    assert message_files(tables.TABLES) == {k: v for k, v in generated_files().items() if k != "tables.py"}


def test_every_message_is_generated():
    wanted = {f"{api}{kind}" for api in APIS for kind in ("Request", "Response")} | set(chain(*DATA.values()))
    assert set(tables.TABLES) == wanted
    assert set(messages.__all__) == wanted | {"NO_UUID", "load"}


SPECIFICATION = {
    "apiKey": 7,
    "type": "request",
    "listeners": ["broker"],
    "name": "FooRequest",
    "validVersions": "0-3",
    "latestVersionUnstable": True,
    "flexibleVersions": "2+",
    "fields": [
        {"name": "TimeoutMs", "type": "int32", "versions": "0+", "default": "-1", "ignorable": True, "about": "…"},
        {"name": "Names", "type": "[]string", "versions": "1+", "nullableVersions": "2+", "default": "null"},
        {"name": "Rack", "type": "string", "versions": "2+", "taggedVersions": "2+", "tag": 0, "default": ""},
        {"name": "Parts", "type": "[]Part", "versions": "0+", "fields": [
            {"name": "Id", "type": "int16", "versions": "0+"},
        ]},
        {"name": "Old", "type": "string", "versions": "0+", "flexibleVersions": "none"},
    ],
}  # fmt: skip
TABLE = """\
request 7 0-3 flexible 2+ unstable
TimeoutMs int32 0+ default -1 ignorable
Names []string 1+ null 2+ default null
Rack string 2+ tag 0 2+
Parts []Part 0+
  Id int16 0+
Old string 0+ flexible none
"""


def test_table_text():
    assert table_text(SPECIFICATION) == TABLE


def test_specifications_are_read_from_directories(tmp_path, monkeypatch):
    folder = tmp_path / "common" / "message"
    folder.mkdir(parents=True)
    response = {
        "apiKey": 7,
        "type": "response",
        "name": "FooResponse",
        "validVersions": "0",
        "flexibleVersions": "none",
    }
    for spec in (SPECIFICATION, response | {"fields": []}):
        text = "// a licence\n" + json.dumps(spec, indent=2).replace("\n", "\n  // a remark\n", 1)
        (folder / f"{spec['name']}.json").write_text(text)
    monkeypatch.setattr(generator, "APIS", ["Foo"])
    monkeypatch.setattr(generator, "DATA", {})
    made = generate([tmp_path])
    assert f'"FooRequest": """\n{TABLE}""",' in made["tables.py"]
    assert 'class FooRequest(Request["FooResponse"]):' in made["messages/foo.py"]


def test_a_missing_specification_is_an_error(tmp_path):
    with pytest.raises(KeyError, match="ProduceRequest"):
        generate([tmp_path])


def test_main_writes_the_files_into_its_own_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generator, "generate", lambda sources: {"messages/foo.py": f"{len(list(sources))}\n"})
    monkeypatch.setattr(generator, "__file__", str(tmp_path / "generate.py"))
    assert generator.main(["one.jar", "two.jar"]) == 0
    assert (tmp_path / "messages" / "foo.py").read_text() == "2\n"
    assert "messages/foo.py: 1 lines" in capsys.readouterr().out


def test_main_without_arguments_prints_the_usage(capsys):
    assert generator.main([]) == 2
    assert "python -m asyncgroup.wire.generate" in capsys.readouterr().err


class TestClasses:
    """Features of specifications that Kafka's current ones do not use."""

    def source(self, *fields: str) -> str:
        return classes_source("Foo", [parse_table("Foo", "\n".join(["data -1 0-1 flexible none", *fields]))])

    def test_defaults(self):
        source = self.source(
            "Ratio float64 0+ default 1.5",
            "Plain float64 0+",
            "Name string 0+ default anonymous",
            "On bool 0+ default true",
            "Mask int32 0+ default 0x10",
        )
        for line in (
            "ratio: float = 1.5,",
            "plain: float = 0.0,",
            "name: str = 'anonymous',",
            "on: bool = True,",
            "mask: int = 16,",
        ):
            assert line in source

    def test_a_python_keyword_as_field_name_is_an_error(self):
        with pytest.raises(ValueError, match=r"Foo\.Class: class is a Python keyword"):
            self.source("Class string 0+")

    def test_a_nullable_struct_may_be_an_empty_one_by_default(self):
        source = self.source("Part Inner 0+ null 0+ tag 0 0+", "  Id int32 0+")
        assert "part: Foo.Inner | None = _EMPTY," in source
        assert "self.part = Foo.Inner() if part is _EMPTY else part" in source

    def test_elements_of_size_0_are_an_error(self):
        """Decoding a malicious count of such elements would not end."""
        spec = parse_table("Foo", "data -1 0-1 flexible none\nParts []Part 0+\n  Id int32 1+\n")
        assert "def read(" in decoder_source(spec, 1)
        with pytest.raises(ValueError, match=r"Foo\.Parts: elements of size 0"):
            decoder_source(spec, 0)
