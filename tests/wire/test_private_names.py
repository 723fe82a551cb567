"""Whatever private name grpcio loses: calls, health and admission are there."""

import re
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lbclient.client.calls import inner_methods
from lbclient.client.channel import Channel
from lbclient.grpc_seam.private import COSTS, LAYERS
from tests import needs
from tests.without_name import all_names

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "tests/wire/without_name.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_said_where_all_names_are_there() -> None:
    needs.grpcio("1.84", "it lacks names, and says so")
    assert run() == ""


def groups() -> list[list[str]]:
    """Each name by itself, but for those that only make streams cheaper: without one of
    these all are left alone, so that what is imported and what is an attribute are
    taken away together, each in a program that has none of them."""
    costs: dict[str, set[str]] = {name: set() for name in all_names()}
    for path, cost in COSTS.items():
        for name in costs.keys() & re.split("[.:]", path):
            costs[name].add(cost)
    of_streams = [name for name in costs if costs[name] == {LAYERS}]
    attributes = [name for name in of_streams if name.startswith("_")]
    imported = [name for name in of_streams if name not in attributes]
    alone = [[name] for name in costs if name not in of_streams]
    return [attributes, imported, *alone]


@pytest.mark.parametrize("names", groups(), ids=lambda names: names[0])
def test_without_a_name_all_works_and_one_line_says_what_it_costs(
    names: list[str],
) -> None:
    needs.grpcio("1.84", "it lacks other names, too")
    said = run(*names).splitlines()
    assert sorted(re.findall(r" has no (\w+)_gone \(", "\n".join(said))) == names
    for line in said:
        cost = line.partition("a private name that lbclient uses: ")[2]
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
