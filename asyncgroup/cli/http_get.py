"""GET a small page by HTTP/1.1, within a time limit and a size: for probes, whose server may be anything but well."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from asyncgroup.errors import ConfigError, UsageError

__all__ = ["HttpAnswer", "http_get", "parse_url"]

MAX_ANSWER: Final = 64 * 1024
"""Bytes of an answer that are read."""

_PORTS: Final = {"http": 80, "https": 443}


class HttpAnswer(NamedTuple):
    """The status and the body of an answer."""

    status: int
    body: str


def parse_url(text: str) -> SplitResult:
    """Return the parts of an http or https URL. Raises ConfigError for another text."""
    rule = "a URL such as http://127.0.0.1:8080"
    try:
        url = urlsplit(text)
        port_is_valid = url.port is None or url.port > 0
    except ValueError:
        raise ConfigError("URL", text, rule) from None
    if url.scheme not in _PORTS or not url.hostname or not port_is_valid or not text.isascii() or " " in text:
        raise ConfigError("URL", text, rule)
    return url


async def http_get(url: SplitResult, path: str, timeout: float) -> HttpAnswer:
    """Return the answer to GET of `path` below the URL. Raises UsageError if there is none within `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await _get(url, path)
    except TimeoutError:
        raise UsageError(f"no answer within {timeout:g} s") from None
    except (OSError, ssl.SSLError) as error:
        raise UsageError(error.strerror or str(error) or type(error).__name__) from None


async def _get(url: SplitResult, path: str) -> HttpAnswer:
    assert url.hostname is not None
    port = url.port or _PORTS[url.scheme]
    tls = ssl.create_default_context() if url.scheme == "https" else None
    reader, writer = await asyncio.open_connection(url.hostname, port, ssl=tls)
    try:
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        lines = (
            f"GET {url.path.rstrip('/')}{path} HTTP/1.1",
            f"Host: {host}:{port}",
            "Connection: close",
            "",
            "",
        )
        writer.write("\r\n".join(lines).encode("ascii"))
        data = b""
        while len(data) < MAX_ANSWER and (more := await reader.read(MAX_ANSWER - len(data))):
            data += more
    finally:
        # without a wait: the answer is complete, or of no use
        writer.transport.abort()
    return _parsed(data)


def _parsed(data: bytes) -> HttpAnswer:
    head, _, body = data.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not (words[1].isdigit() and len(words[1]) == 3):
        raise UsageError("the answer is not HTTP")
    return HttpAnswer(int(words[1]), body.decode(errors="replace"))
