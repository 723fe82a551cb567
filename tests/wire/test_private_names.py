"""Whatever private name grpcio loses: calls, health and admission are there."""

import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lbclient.client.calls import inner_methods
from lbclient.client.channel import Channel
from tests import needs
from tests.without_name import all_names

ROOT = Path(__file__).parents[2]


def run(*names: str) -> list[str]:
    """What the program logs without them."""
    done = subprocess.run(
        [sys.executable, "tests/wire/without_name.py", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_nothing_is_said_where_all_names_are_there() -> None:
    needs.grpcio("1.84", "it lacks names, and says so")
    assert run() == []


@pytest.mark.parametrize("name", all_names())
def test_without_a_name_all_works_and_one_line_says_what_it_costs(name: str) -> None:
    needs.grpcio("1.84", "it lacks other names, too")
    lines = run(name)
    assert len(lines) == 1, lines
    [said] = lines
    assert f" has no {name}_gone (" in said
    cost = said.partition("a private name that lbclient uses: ")[2]
    assert cost


async def test_a_wrapped_call_has_the_time_that_it_was_given(
    monkeypatch: pytest.MonkeyPatch, start: Any
) -> None:
    """On a clock that goes on with each look, for a call takes its time to make."""
    monkeypatch.setattr(inner_methods, "call_arguments", lambda *_: None)
    task, begun, looks = await start(), time.monotonic(), count()
    channel = Channel(
        *(task.address, None, None, None, None, None),
        clock=lambda: begun + 0.001 * next(looks),
    )
    async with channel:
        await channel.channel_ready()
        call = channel.unary_unary("/search.Search/Search")(b"", timeout=20)
        assert call.time_remaining() <= 20
        await call
