"""pulsar-client-go's tests against the embedded Pulsar. They are skipped without Go or its modules.

Their broker is at ports 6650 and 8080, constants of the suite, so that one run at a time is on a machine. They run side by side in the
background, a few at once, as they mostly wait; each has a test here with its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Final

import pytest

from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.interop.go_suite import (
    ADMIN_PORT,
    ADMIN_TLS_PORT,
    BUILD_LIMIT,
    PORT,
    TLS_PORT,
    GoSuite,
    build_suite,
    fixed_ports,
    written_tests,
)
from tests.pulsar_broker.interop.go_tests import ALONE, CREDENTIALS, FILES, LEFT_OUT, LONG, REPEATED
from tests.pulsar_broker.interop.names_of_go_tests import NAMES
from tests.pulsar_broker.interop.tls_relay import tls_relay

pytestmark = [pytest.mark.real, pytest.mark.full]

LIMIT: Final = 100.0
AT_ONCE: Final = 6
ATTEMPTS: Final = 12
_CERTIFICATES: Final = "../integration-tests/certs"
_TOKENS: Final = ("../integration-tests/tokens/admin-token", "../integration-tests/tokens/token.txt")
_USERS: Final = {"admin": "123456"}

Outcomes = Mapping[str, "Future[str]"]


@asynccontextmanager
async def broker(suite: GoSuite, *, needs_credentials: bool = False) -> AsyncIterator[None]:
    """A broker as the suite expects it, with TLS at the ports that it has for that."""
    files_of_tokens = [(suite.directory / path).read_text() for path in _TOKENS]
    tokens = {text: "admin" for token in files_of_tokens for text in (token, token.strip())}
    certificates = suite.directory / _CERTIFICATES
    files = certificates / "broker-cert.pem", certificates / "broker-key.pem"
    async with (
        EmbeddedPulsar(
            port=PORT,
            admin=True,
            admin_port=ADMIN_PORT,
            namespaces=["private/auth"],
            max_message_size=1 << 20,
            policy_interval=5.0,
            tokens=tokens if needs_credentials else None,
            users=_USERS if needs_credentials else None,
        ) as pulsar,
        tls_relay(TLS_PORT, PORT, *files),
        tls_relay(ADMIN_TLS_PORT, ADMIN_PORT, *files),
    ):
        for node in runtime_of(pulsar).nodes.values():
            node.service_url_tls = f"pulsar+ssl://localhost:{TLS_PORT}"
        yield


async def run(suite: GoSuite, outcomes: Outcomes) -> None:
    """Run tests, and set their outcomes. Those that fail beside others, whose names or time they may share, run once more alone."""
    alone = [name for name in outcomes if name in ALONE]
    others = [name for name in outcomes if name not in {*ALONE, *CREDENTIALS}]

    async def beside_others(name: str) -> None:
        async with places:
            if await suite.run(name, LIMIT):
                alone.append(name)
            else:
                outcomes[name].set_result("")

    places = asyncio.Semaphore(AT_ONCE)
    async with broker(suite), asyncio.TaskGroup() as group:
        for name in sorted(others, key=lambda name: name not in LONG):
            group.create_task(beside_others(name))
    async with broker(suite, needs_credentials=True):
        for name in CREDENTIALS:
            if name in outcomes:
                outcomes[name].set_result(await suite.run(name, LIMIT))
    async with broker(suite):
        for name in alone:
            for _ in range(ATTEMPTS if name in REPEATED else 1):
                output = await suite.run(name, LIMIT)
                if not output:
                    break
            outcomes[name].set_result(output)


def selected(items: Sequence[pytest.Item]) -> list[str]:
    """Return the names of the tests that this run has."""
    return [
        item.callspec.params["name"]
        for item in items
        if isinstance(item, pytest.Function)
        and item.path.name == "test_go_client.py"
        and hasattr(item, "callspec")
    ]


@pytest.fixture(scope="module")
def suite() -> GoSuite:
    return build_suite()


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, suite: GoSuite) -> Iterator[Outcomes]:
    """The outcomes of all tests that are selected, which run in a thread."""
    found: dict[str, Future[str]] = {name: Future() for name in selected(request.session.items)}
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        started.append((asyncio.get_running_loop(), task))
        await run(suite, found)

    def target() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            for each in found.values():
                if not each.done():
                    each.set_exception(error)

    with fixed_ports():
        thread = threading.Thread(target=target, name="pulsar-client-go")
        thread.start()
        yield found
        for loop, task in started:
            if not loop.is_closed():  # the run of tests ends early
                with contextlib.suppress(RuntimeError):  # it has ended now
                    loop.call_soon_threadsafe(task.cancel)
        thread.join()


@pytest.mark.timeout(BUILD_LIMIT + LIMIT)
def test_each_test_runs_or_is_left_out_with_a_reason(suite: GoSuite) -> None:
    sources = written_tests(suite.directory)
    left_out = [name for names in LEFT_OUT.values() for name in names]
    assert len(set(left_out)) == len(left_out)
    written = [name for file in FILES for name in sources[file]]
    assert set(left_out) <= set(written)
    assert [name for name in written if name not in left_out] == list(NAMES)
    assert {*REPEATED, *ALONE, *LONG, *CREDENTIALS} <= set(NAMES)


@pytest.mark.timeout(10 * LIMIT)
@pytest.mark.parametrize("name", NAMES)
def test_of_pulsar_client_go(outcomes: Outcomes, name: str) -> None:
    output = outcomes[name].result()
    lines = [
        line for line in output.splitlines() if "level=" not in line and not line.startswith(("time=", "{"))
    ]
    assert not output, "\n".join(lines[-60:])
