"""Names by getaddrinfo, as without dnspython: the system's own, of a real name server.

In namespaces of the test's own: /etc/resolv.conf names a server on their loopback, and
/etc/hosts has a name.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import needs

PROGRAM = Path(__file__).parent / "system" / "names.py"

FILES = {
    "resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
    "hosts": "127.0.0.1 localhost\n127.0.0.9 hosts.test\n",
    "nsswitch.conf": "hosts: files dns\n",
}

ALONE = ("unshare", "--map-root-user", "--net", "--mount", "sh", "-ec")


def alone(command: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ALONE, command, "sh", *words], capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    needs.program("unshare")
    needs.program("ip")
    folder = tmp_path_factory.mktemp("etc")
    command = "ip link set lo up\n"
    for name, text in FILES.items():
        (folder / name).write_text(text)
        command += f"mount --bind {folder / name} /etc/{name}\n"
    ready = alone(command)
    if ready.returncode:
        needs.skip(f"no namespaces here: {ready.stderr.strip()}")
    done = alone(command + 'exec "$@"', sys.executable, str(PROGRAM))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_name_of_the_hosts_file_is_known(found: Any) -> None:
    assert found["hosts"] == ["127.0.0.9"]


def test_new_addresses_get_calls_within_the_interval(found: Any) -> None:
    assert found["took"] < 2.0


@pytest.mark.parametrize(
    ("how", "words"),
    [("NXDOMAIN", "not known"), ("silence", "Temporary failure")],
)
def test_a_failure_is_told_in_the_system_s_words_and_takes_nothing_away(
    found: Any, how: str, words: str
) -> None:
    error, endpoints = found[how]
    assert error.startswith("DNS lookup of 'search.test' failed: ")
    assert words in error
    assert endpoints == 6


def test_the_system_does_not_tell_half_an_answer_from_all_of_it(found: Any) -> None:
    """Of six addresses one is left, and no error; docs/discovery.md says so."""
    assert found["half"] == ["", 1]
