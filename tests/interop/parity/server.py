"""Stories about malformed requests: unknown APIs and versions, invalid frames."""

from __future__ import annotations

import struct

from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import API_BY_NAME, APIS
from tests.broker.client import Disconnected
from tests.interop.parity.scene import Scene

__all__ = ["api_versions", "levels_in", "malformed_requests", "unsupported_versions"]


async def api_versions(scene: Scene) -> None:
    """The advertised versions and features, in each version of ApiVersions."""
    for version in range(5):
        answer = await scene.quietly(m.ApiVersionsRequest("parity", "1.0"), version)
        known = {one.api_key: one for one in answer.api_keys}
        names = {key: APIS[key].name if key in APIS else str(key) for key in known}
        scene.keep(
            f"ranges v{version}",
            {names[key]: (one.min_version, one.max_version) for key, one in known.items()},
        )
        scene.keep(f"features v{version}", levels_in(answer))
        answer.api_keys = answer.supported_features = answer.finalized_features = []
        scene.keep(f"all else v{version}", answer, version)
    for name, software in (("", "1.0"), ("parity", ""), ("-x", "1.0"), ("a b", "1.0"), ("parity", "1.0-")):
        await scene.ask(f"software {name!r} {software!r}", m.ApiVersionsRequest(name, software), version=3)


def levels_in(answer: m.ApiVersionsResponse) -> dict[str, tuple[int, int]]:
    """Return the supported and the finalized levels of the features."""
    levels = {f"supports {f.name}": (f.min_version, f.max_version) for f in answer.supported_features}
    return levels | {f.name: (f.min_version_level, f.max_version_level) for f in answer.finalized_features}


async def malformed_requests(scene: Scene) -> None:
    """Frames that the server answers by closing the connection, or in version 0."""

    def header(key: int, version: int, rest: bytes = b"\x00\x01x") -> bytes:
        return struct.pack(">hhi", key, version, 7) + rest

    frames = {
        "an unknown API": header(9999, 0),
        "a negative API": header(-1, 0),
        "a version too high": header(3, 99),
        "a negative version": header(3, -1),
        "a version too low": header(1, 0),
        "ApiVersions of a version too high": header(18, 99),
        "ApiVersions of a version to come": header(18, 99, b"\x00\x01x\x00"),
        "ApiVersions of a negative version": header(18, -1),
        "an API for controllers only": header(62, 0),
        "half a header": b"\x00\x03",
        "nothing": b"",
        "no body": header(3, 1, b"\xff\xff"),
        "a body cut short": header(3, 1, b"\xff\xff\x00\x00\x00\x02\x00"),
        "a body with more behind it": header(3, 1, b"\xff\xff\x00\x00\x00\x00rest"),
        "an array that is too long": header(3, 1, b"\xff\xff\x7f\xff\xff\xff"),
        "a string that is too long": header(3, 1, b"\x7f\xff"),
        "a null in place of a group": header(12, 0, b"\xff\xff" + b"\xff\xff\x00\x00\x00\x01\x00\x01m"),
        "a null in place of a member": header(12, 0, b"\xff\xff" + b"\x00\x01g\x00\x00\x00\x01\xff\xff"),
        "a null group, compact": header(12, 4, b"\xff\xff\x00" + b"\x00\x00\x00\x00\x01\x02m\x00\x00"),
        "a null list": header(42, 0, b"\xff\xff" + b"\xff\xff\xff\xff"),
        "a negative length of a list": header(42, 0, b"\xff\xff" + b"\xff\xff\xff\xfe"),
        "a negative length of a string": header(12, 0, b"\xff\xff" + b"\xff\xfe\x00\x00\x00\x01\x00\x01m"),
        "a group that is not the alphabet": header(
            12, 0, b"\xff\xff" + b"\x00\x02\xff\xfe\x00\x00\x00\x01\x00\x01m"
        ),
        "an unknown tag": header(12, 4, b"\xff\xff\x00" + b"\x02g\x00\x00\x00\x01\x02m\x00\x01\x63\x02ab"),
        "a tag twice": header(12, 4, b"\xff\xff\x00" + b"\x02g\x00\x00\x00\x01\x02m\x00\x02\x63\x00\x63\x00"),
        "a tag that is too long": header(
            12, 4, b"\xff\xff\x00" + b"\x02g\x00\x00\x00\x01\x02m\x00\x01\x63\x09ab"
        ),
        "a client id that is not the alphabet": header(3, 1, b"\x00\x02\xff\xfe\x00\x00\x00\x00"),
    }
    for label, frame in frames.items():
        client = await scene.client(label)
        client.send_frame(frame)
        await _ends(scene, label)
    for label, size in (("a negative size", -1), ("too large a size", 200_000_000)):
        client = await scene.client(label)
        client.send_bytes(struct.pack(">i", size))
        await _ends(scene, label)


async def unsupported_versions(scene: Scene) -> None:
    """Each API in the versions above the highest and below the lowest one."""
    if scene.pick != "highest":
        return
    for name, (low, high) in scene.ranges.items():
        for label, version in (("above", high + 1), ("below", low - 1)):
            client = await scene.client("beyond")
            # A header without a client id, and a body that is too short for any API.
            client.send_frame(struct.pack(">hhihb", API_BY_NAME[name].key, version, 7, -1, 0))
            try:
                scene.keep(f"{name} {label}", (await client.receive_frame())[:6].hex())
            except Disconnected:
                scene.keep(f"{name} {label}", None)
            await scene.hang_up("beyond")


async def _ends(scene: Scene, label: str) -> None:
    """Keep whether the broker answers or closes the connection, and the first bytes of the answer."""
    client = await scene.client(label)
    try:
        scene.keep(label, (await client.receive_frame())[:6].hex())
    except Disconnected:
        scene.keep(label, None)
    await scene.hang_up(label)
