"""Certificates made anew for each test run, by openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest

LIFE = "-days 2"


def certify(folder: Path, name: str) -> Path:
    """Into `folder`, an authority's `ca.pem`, and key and certificate of a `server` and
    of a `client`, which are for `name` alone: `DNS:localhost`, `IP:127.0.0.1`."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    (folder / "names").write_text(f"subjectAltName={name}\n")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    by = "-CA ca.pem -CAkey ca.key -CAcreateserial -extfile names"
    commands = [f"req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=ca {LIFE}"]
    for who in ("server", "client"):
        commands.append(f"req {key} -keyout {who}.key -out {who}.csr -subj /CN={who}")
        commands.append(f"x509 -req -in {who}.csr -out {who}.pem {by} {LIFE}")
    for command in commands:
        words = ["openssl", *command.split()]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return folder
