"""A certificate authority for tests, and certificates signed by it, created by the `openssl` program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["Authority"]


class Authority:
    """Writes PEM files to `folder`: `ca.pem`, and for each name given to `sign` a certificate with its key.

    Skips the test if there is no `openssl` program.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl program to make certificates with")
        self._folder = folder
        self._name = name
        self.ca_file = str(folder / f"{name}.pem")
        (folder / "openssl.cnf").write_text(_SETTINGS)
        self._run("req", "-x509", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem",
                  "-subj", f"/CN={name}", "-days", "2")  # fmt: skip

    def sign(self, name: str, alternative: str) -> str:
        """Return the path of a file with a key and its certificate for `alternative` ("IP:127.0.0.1")."""
        self._run("req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        # Python 3.13 and later require the authority key identifier
        extensions = (
            f"subjectAltName={alternative}",
            "subjectKeyIdentifier=hash",
            "authorityKeyIdentifier=keyid",
        )
        (self._folder / f"{name}.ext").write_text("\n".join(extensions) + "\n")
        self._run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{self._name}.pem", "-CAkey",
                  f"{self._name}.key", "-CAcreateserial", "-out", f"{name}.crt", "-days", "2",
                  "-extfile", f"{name}.ext")  # fmt: skip
        both = self._folder / f"{name}.pem"
        both.write_text(
            (self._folder / f"{name}.key").read_text() + (self._folder / f"{name}.crt").read_text()
        )
        return str(both)

    def sign_for(self, name: str, alternative: str, start: str, end: str) -> str:
        """As `sign`, valid from `start` to `end` (YYYYMMDDHHMMSSZ), for certificates that are expired or not valid yet."""
        self.sign(name, alternative)
        (self._folder / "index.txt").write_text("")
        (self._folder / "serial").write_text("01\n")
        (self._folder / "openssl.cnf").write_text(_SETTINGS + _DATABASE)
        self._run("ca", "-batch", "-config", "openssl.cnf", "-cert", f"{self._name}.pem", "-keyfile",
                  f"{self._name}.key", "-in", f"{name}.csr", "-out", f"{name}.crt", "-startdate", start,
                  "-enddate", end, "-extfile", f"{name}.ext", "-notext")  # fmt: skip
        both = self._folder / f"{name}.pem"
        both.write_text(
            (self._folder / f"{name}.key").read_text() + (self._folder / f"{name}.crt").read_text()
        )
        return str(both)

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr


_NEW_KEY = ("-config", "openssl.cnf", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

_SETTINGS = """\
[req]
distinguished_name = name
x509_extensions = authority
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""

_DATABASE = """\
[ca]
default_ca = authority_database
[authority_database]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = any_name
unique_subject = no
[any_name]
commonName = supplied
"""
