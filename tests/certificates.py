"""Certificates made anew for each test run, by openssl."""

import subprocess
from pathlib import Path

from tests import needs

LIFE = "-days 2"
KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def certify(folder: Path, name: str) -> Path:
    """Into `folder`, an authority's `ca.pem`, and key and certificate of a `server` and
    of a `client`, which are for `name` alone: `DNS:localhost`, `IP:127.0.0.1`."""
    needs.program("openssl")
    openssl(folder, f"req -x509 {KEY} -keyout ca.key -out ca.pem -subj /CN=ca {LIFE}")
    for who in ("server", "client"):
        issue(folder, who, name)
    return folder


def issue(folder: Path, who: str, name: str = "") -> None:
    """One more, by the same authority: `who` is its common name, and the files'."""
    by = "-CA ca.pem -CAkey ca.key -CAcreateserial"
    if name:
        (folder / "names").write_text(f"subjectAltName={name}\n")
        by += " -extfile names"
    openssl(folder, f"req {KEY} -keyout {who}.key -out {who}.csr -subj /CN={who}")
    openssl(folder, f"x509 -req -in {who}.csr -out {who}.pem {by} {LIFE}")


def openssl(folder: Path, command: str) -> None:
    words = ["openssl", *command.split()]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
