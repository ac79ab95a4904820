"""Usage errors of the administrative commands: exit code 2 with one line, before anything is connected."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator

import pytest

from asyncgroup.cli.app import ADMINISTRATION, _parser

CASES: list[tuple[str, ...]] = [
    ("topics", "create", "t", "-p", "0"),
    ("topics", "create", "t", "--partitions", "many"),
    ("topics", "create", "t", "--set", "retention.ms"),
    ("topics", "create", "t", "--set", "a=1", "--set", "a=2"),
    ("topics", "create", "t", "-p", "2", "--replica-assignment", "1"),
    ("topics", "create", "a b"),
    ("topics", "create"),
    ("topics", "add-partitions", "orders"),
    ("topics", "delete-records", "orders", "--before", "-1"),
    ("topics", "delete-records", "orders:x", "--before", "1"),
    ("topics", "list", "--json", "-q"),
    ("configs", "describe", "planet"),
    ("configs", "alter", "topic", "orders"),
    ("configs", "alter", "topic", "orders", "--set", "a=1", "--delete", "a"),
    ("configs", "alter", "topic", "orders", "--delete", "a,,b"),
    ("configs", "alter", "topic", "orders", "--set-file", "/no/such/file"),
    ("configs", "alter", "topic", "--set", "a=1"),
    ("groups", "delete"),
    ("groups", "describe", ""),
    ("groups", "list", "--state", ","),
    ("groups", "list", "--state", "Bogus"),
    ("groups", "list", "--state", "Stable,Bogus"),
    ("groups", "list", "--type", "Bogus"),
    ("groups",),
    ("offsets", "alter", "g", "orders=5"),
    ("offsets", "alter", "g", "orders:0=-5"),
    ("offsets", "alter", "g", "orders:0=x"),
    ("offsets", "alter", "g", "orders:0=9223372036854775808"),
    ("offsets", "alter", "g", "orders:0=1", "orders:0=2"),
    ("offsets", "alter", "g"),
    ("offsets", "list"),
    ("offsets", "delete", "g"),
    ("offsets", "at", "2026-11-27T10:00", "orders"),
    ("offsets", "at", "yesterday"),
    ("offsets", "at"),
    ("offsets", "latest", "orders:"),
    ("offsets", "latest", "--isolation-level", "serializable"),
    ("groups", "lag", "--summary", "--watch"),
    ("groups", "lag", "--count", "2"),
    ("groups", "lag", "--watch", "--interval", "0"),
    ("groups", "reset", "g"),
    ("groups", "reset", "g", "--to-latest"),
    ("groups", "reset", "g", "--to-latest", "--to-earliest", "--all-topics"),
    ("groups", "reset", "g", "--to-offset", "-1", "--all-topics"),
    ("groups", "reset", "g", "--shift-by", "+-1", "--all-topics"),
    ("groups", "reset", "g", "--shift-by", "x", "--all-topics"),
    ("groups", "reset", "g", "--to-datetime", "2026-11-27T10:00", "--all-topics"),
    ("groups", "reset", "g", "--to-datetime", "7d", "--all-topics"),
    ("groups", "reset", "g", "--by-duration", "0s", "--all-topics"),
    ("groups", "reset", "g", "--to-latest", "--all-topics", "--topic", "orders"),
    ("groups", "reset", "g", "--to-latest", "--all-topics", "--execute", "--dry-run"),
    ("groups", "reset", "g", "--to-latest", "--all-topics", "--export", "--json"),
    ("groups", "reset", "g", "--from-file", "x.csv", "--all-topics"),
    ("acls", "create", "--topic", "a", "--principal", "User:x"),
    ("acls", "create", "--principal", "User:x", "--operation", "READ"),
    ("acls", "create", "--topic", "a", "--principal", "User:x", "--operation", "READ", "--pattern", "match"),
    ("acls", "delete"),
    ("acls", "delete", "--execute"),
    ("acls", "list", "--pattern", "match"),
    ("acls", "list", "--permission", "maybe"),
    ("acls", "list", "--operation", "Bogus"),
    ("acls", "list", "--principal", "alice"),
    ("acls", "delete", "--topic", "a", "--operation", "Bogus"),
    ("acls", "create", "--topic", "a", "--principal", "User:x", "--operation", "READ,Bogus"),
    ("acls", "create", "--topic", "a", "--principal", "alice", "--operation", "READ"),
    ("users", "set"),
    ("users", "set", "alice", "--mechanism", "PLAIN"),
    ("users", "set", "alice", "--password-file", "/no/such/file"),
    ("users", "set", "alice", "--password-file", "/dev/null"),
    ("users", "delete"),
    ("quotas", "alter", "--user", "alice"),
    ("quotas", "alter", "--set", "producer_byte_rate=1"),
    ("quotas", "alter", "--user", "alice", "--set", "producer_byte_rate=fast"),
    ("quotas", "alter", "--user", "alice", "--set", "a=1", "--delete", "a"),
    ("cluster", "elect-leaders", "--unclean"),
    ("cluster", "reassign", "orders:0"),
    ("cluster", "reassign", "orders=1"),
    ("cluster", "reassign", "orders:0=1,,2"),
    ("cluster", "reassign", "orders:0=1", "orders:0=2"),
    ("cluster", "set-features", "a=1", "a=2"),
    ("cluster", "set-features", "a=1", "--downgrade", "--unsafe-downgrade"),
    ("cluster", "set-features", "a"),
    ("cluster", "log-dirs", "--broker", "x"),
    ("cluster", "alter-log-dirs", "1"),
    ("cluster", "alter-log-dirs", "x", "orders:0=/d"),
    ("cluster", "alter-log-dirs", "1", "orders:0="),
    ("cluster", "alter-log-dirs", "1", "orders:0=/d", "orders:0=/e"),
    ("health", "http://"),
    ("health", "http://127.0.0.1:1", "--max-lag", "1"),
    ("health", ""),
    ("health",),
    ("groups", "remove-members", "g"),
    ("groups", "remove-members", "g", "--all", "--member", "m"),
    ("transactions", "abort", "orders:0"),
    ("transactions", "abort", "orders:0", "--start-offset", "1", "--producer-id", "1"),
    ("transactions", "abort", "orders:0", "--producer-id", "1"),
    ("transactions", "abort", "orders", "--start-offset", "1"),
    ("transactions", "abort", "orders:0,1", "--start-offset", "1"),
    ("transactions", "list", "--producer-id", "-1"),
    ("transactions", "list", "--longer-than", "x"),
    ("transactions", "list", "--state", "Ongoing,Bogus"),
    ("transactions", "find-hanging", "--broker", "x"),
]


@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_usage_errors(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        options = _parser().parse_args([*arguments, "-b", "127.0.0.1:1"])
        asyncio.run(options.run(options))
    assert caught.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"asyncgroup {arguments[0]}")
    assert ": error: " in error


@pytest.mark.parametrize(
    ("arguments", "option", "allowed"),
    [
        (
            ("groups", "list", "--state"),
            "--state",
            "one of PreparingRebalance, CompletingRebalance, Assigning,",
        ),
        (("groups", "list", "--type"), "--type", "one of classic, consumer, share, streams"),
        (("transactions", "list", "--state"), "--state", "one of Empty, Ongoing, PrepareCommit,"),
        (("acls", "list", "--operation"), "operation", "one of ALL, READ, WRITE,"),
        (("configs", "describe"), "kind", "'topic', 'broker'"),
        (("groups", "lag", "--isolation-level"), "--isolation-level", "'read_uncommitted', 'read_committed'"),
        (("users", "set", "alice", "--mechanism"), "--mechanism", "'SCRAM-SHA-512', 'SCRAM-SHA-256'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_word_that_kafka_does_not_have_names_those_that_it_has(
    arguments: tuple[str, ...], option: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        options = _parser().parse_args([*arguments, "Bogus", "-b", "127.0.0.1:1"])
        asyncio.run(options.run(options))
    assert caught.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert option in error
    assert allowed in error
    assert "bogus" in error.lower()


def test_without_servers_there_is_nothing_to_connect_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASYNCGROUP_BOOTSTRAP_SERVERS", raising=False)
    options = _parser().parse_args(["topics", "list"])
    with pytest.raises(SystemExit) as caught:
        asyncio.run(options.run(options))
    assert caught.value.code == 2
    assert "-b/--bootstrap-servers is required" in capsys.readouterr().err


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


@pytest.mark.parametrize("columns", ["40", "100"])
def test_every_command_has_help_that_fits(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    found = list(parsers(_parser()))
    assert len(found) > 60
    for parser in found:
        assert parser.format_help().startswith("usage: asyncgroup")
        is_leaf = not any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
        if is_leaf and parser.prog.split()[1] in ADMINISTRATION:
            assert [action.dest for action in parser._actions if not action.help] == [], parser.prog
