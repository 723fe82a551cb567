"""What the idle benchmark counts, says, and complains of."""

import socket
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.idle import (
    MOST_CPU,
    MOST_MEMORY,
    PLAIN,
    TRACED,
    Idle,
    own_connections,
    say,
)

SOUND = Idle(
    states={"inactive": 500},
    connections=0,
    cpu=[0.004, 0.002],
    probes=[1000, 500],
    resident=75.0,
    trimmed=40.0,
    traced=None,
    call=0.02,
)
SOUND_TRACED = replace(SOUND, cpu=[0.02], probes=[1000], traced=10.0)


@pytest.mark.parametrize("idle", [SOUND, SOUND_TRACED], ids=["plain", "traced"])
def test_a_client_within_its_targets_misses_none(idle: Idle) -> None:
    assert idle.misses() == []


@pytest.mark.parametrize(
    ("idle", "change", "missed"),
    [
        (SOUND, {"states": {"inactive": 499, "ready": 1}}, "all inactive"),
        (SOUND, {"connections": 1}, "no connection, not 1"),
        (SOUND, {"cpu": [0.001, MOST_CPU]}, "CPU below 0.5%"),
        (SOUND, {"trimmed": MOST_MEMORY + 0.1}, "at most 50 KB"),
        (SOUND_TRACED, {"traced": MOST_MEMORY + 0.1}, "at most 50 KB"),
    ],
)
def test_each_missed_target_is_told(
    idle: Idle,
    change: dict[str, Any],
    missed: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = replace(idle, **change)
    (target,) = bad.misses()
    assert target.startswith(missed)
    say(bad, PLAIN if idle is SOUND else TRACED)
    assert target in capsys.readouterr().out


def test_each_stretch_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    say(SOUND, PLAIN)
    rows = [row for row in capsys.readouterr().out.splitlines() if "CPU" in row]
    assert [" ".join(row.split()) for row in rows] == [
        "CPU, 0 to 30 s 0.40% of a core, 1000 probes",
        "CPU, 30 to 60 s 0.20% of a core, 500 probes",
    ]


def test_the_tcp_sockets_of_this_process_are_counted() -> None:
    before = own_connections()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        with client, listener.accept()[0]:
            assert own_connections() == before + 3
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        assert own_connections() == before
