from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from asyncgroup.testing.java_server.ivy import python_authorities, trust_store


def test_layout() -> None:
    data = trust_store([b"first", b"second!"])
    body, digest = data[:-20], data[-20:]
    assert struct.unpack_from(">III", body) == (0xFEEDFEED, 2, 2)
    assert body.count(b"X.509") == 2
    assert body.endswith(struct.pack(">I", 7) + b"second!")
    assert digest == hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


@pytest.mark.java
def test_java_reads_what_python_trusts(tmp_path: Path) -> None:
    keytool, authorities = shutil.which("keytool"), python_authorities()
    if keytool is None:
        pytest.skip("no keytool, as in runtimes from wheels")
    if not authorities:
        pytest.skip("Python has no list of certificate authorities here")
    store = tmp_path / "authorities.jks"
    store.write_bytes(trust_store(authorities))
    command = [keytool, "-list", "-keystore", str(store), "-storepass", "changeit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("trustedCertEntry") == len(authorities)
