"""ScramClient: the RFC's example, a server written for the test, and invalid server messages."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.cluster.authentication import ScramClient
from asyncgroup.wire.scram import HASHES, ScramError
from tests.profiles import examples


class Server:
    """The server side of SCRAM by RFC 5802, for a user with `password`."""

    def __init__(self, mechanism: str, password: str, iterations: int = 4096, salt: bytes = b"salt") -> None:
        self.hash = HASHES[mechanism]
        self.iterations = iterations
        self.salt = salt
        salted = hashlib.pbkdf2_hmac(self.hash, password.encode(), salt, iterations)
        self.stored = hashlib.new(self.hash, self.hmac(salted, b"Client Key")).digest()
        self.server_key = self.hmac(salted, b"Server Key")
        self.username = ""
        self.authzid = ""

    def hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self.hash).digest()

    def challenge(self, first: bytes) -> bytes:
        flag, authzid, self.bare = first.decode().split(",", 2)
        assert flag == "n"
        self.header = f"n,{authzid},"
        name, nonce = self.bare.split(",r=")
        self.username = name.removeprefix("n=").replace("=2C", ",").replace("=3D", "=")
        self.authzid = authzid.removeprefix("a=").replace("=2C", ",").replace("=3D", "=")
        self.nonce = nonce + "server"
        self.first = f"r={self.nonce},s={base64.b64encode(self.salt).decode()},i={self.iterations}"
        return self.first.encode()

    def accepts(self, final: bytes) -> bytes | None:
        """Return the server-final-message, None if the client's proof is wrong."""
        without, _, proof = final.decode().rpartition(",p=")
        binding = base64.b64encode(self.header.encode()).decode()
        assert without == f"c={binding},r={self.nonce}"
        message = f"{self.bare},{self.first},{without}".encode()
        mask = self.hmac(self.stored, message)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), mask, strict=True))
        if hashlib.new(self.hash, key).digest() != self.stored:
            return None
        return b"v=" + base64.b64encode(self.hmac(self.server_key, message))


def test_the_example_in_rfc_7677() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server_first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert client.final(server_first) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.sampled_from(sorted(HASHES)),
    names,
    names,
    st.one_of(st.just(""), names),
    st.binary(min_size=1, max_size=40),
)
@settings(max_examples=examples(30), deadline=None)
def test_any_name_and_password(mechanism: str, user: str, password: str, authzid: str, salt: bytes) -> None:
    server = Server(mechanism, password, salt=salt)
    client = ScramClient(mechanism, user, password, authzid)
    answer = server.accepts(client.final(server.challenge(client.first())))
    assert answer is not None
    client.verify(answer)
    assert (server.username, server.authzid) == (user, authzid)


def test_a_wrong_password_fails_and_nonces_differ() -> None:
    server = Server("SCRAM-SHA-512", "right")
    client = ScramClient("SCRAM-SHA-512", "user", "wrong")
    assert server.accepts(client.final(server.challenge(client.first()))) is None
    assert ScramClient("SCRAM-SHA-512", "u", "p").first() != ScramClient("SCRAM-SHA-512", "u", "p").first()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"r=other,s=QQ==,i=4096", "nonce"),
        (b"r=mine,s=QQ==,i=4096", "followed by further"),
        (b"s=QQ==,i=4096", "nonce"),
        (b"r=mine+,s=QQ==,i=4095", "4095 iterations; 4096 to"),
        (b"r=mine+,s=QQ==,i=999999999", "999999999 iterations"),
        (b"r=mine+,s=QQ==,i=-1", "iteration count"),
        (b"r=mine+,s=QQ==", "iteration count"),
        (b"r=mine+,s=,i=4096", "salt"),
        (b"r=mine+,s=Q,i=4096", "base64"),
        (b"r=mine+,s=Q\xff,i=4096", "UTF-8"),
        (b"m=x,r=mine+,s=QQ==,i=4096", "extension"),
        (b"", "nonce"),
    ],
)
def test_invalid_server_first_messages(answer: bytes, expected: str) -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="mine")
    client.first()
    with pytest.raises(ScramError, match=expected) as caught:
        client.final(answer)
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"v=QQ==", "does not know the password"),
        (b"v=", "does not know the password"),
        (b"", "does not know the password"),
        (b"v=Q", "base64"),
        (b"e=invalid-proof", "refused authentication: invalid-proof"),
    ],
)
def test_invalid_server_final_messages(answer: bytes, expected: str) -> None:
    server = Server("SCRAM-SHA-256", "pencil")
    client = ScramClient("SCRAM-SHA-256", "user", "pencil")
    client.final(server.challenge(client.first()))
    with pytest.raises(ScramError, match=expected):
        client.verify(answer)


def test_verify_before_final_fails() -> None:
    with pytest.raises(ScramError):
        ScramClient("SCRAM-SHA-256", "user", "pencil").verify(b"v=")


@given(st.binary(max_size=60))
def test_random_bytes_raise_only_scram_error(noise: bytes) -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil")
    with pytest.raises(ScramError):
        client.final(noise)
