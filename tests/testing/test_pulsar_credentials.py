from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.testing.apache_pulsar import create_token
from asyncgroup.testing.apache_pulsar.credentials import split_certificate

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----\n"


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_a_token_is_signed() -> None:
    header, claims, signature = create_token(b"key", "ann").split(".")
    assert json.loads(decoded(header)) == {"alg": "HS256"}
    assert json.loads(decoded(claims)) == {"sub": "ann"}
    expected = hmac.new(b"key", f"{header}.{claims}".encode(), hashlib.sha256).digest()
    assert decoded(signature) == expected


@pytest.mark.parametrize("lifetime", [60, -60.2])
def test_a_token_expires(lifetime: float) -> None:
    claims = json.loads(decoded(create_token(b"key", "ann", lifetime).split(".")[1]))
    assert abs(claims["exp"] - time.time() - lifetime) < 20


def test_a_certificate_and_its_key_are_written_to_two_files(tmp_path: Path) -> None:
    pem = tmp_path / "both.pem"
    pem.write_text(f"of a broker\n{KEY}{CERTIFICATE}{CERTIFICATE}")
    split_certificate(pem, tmp_path)
    assert (tmp_path / "certificate.pem").read_text() == CERTIFICATE * 2
    assert (tmp_path / "private-key.pem").read_text() == KEY


@pytest.mark.parametrize("text", ["", KEY, CERTIFICATE])
def test_a_file_that_lacks_one_of_them(tmp_path: Path, text: str) -> None:
    pem = tmp_path / "both.pem"
    pem.write_text(text)
    with pytest.raises(
        ConfigError, match=r"certificate=.* a PEM file with a private key and its certificate"
    ):
        split_certificate(pem, tmp_path)
