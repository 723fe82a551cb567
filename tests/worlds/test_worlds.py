"""Two hundred worlds, and seeds that once broke a promise.

`python -m tests.worlds --seed N` tells the story of one, `--minutes 30` runs more.
"""

import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds import either
from tests.worlds.either import places
from tests.worlds.invariants import broken
from tests.worlds.kept import KEPT
from tests.worlds.mutants import EVERY, MUTANTS, hunt
from tests.worlds.plan import CallPlan, Fault, Plan, ServerPlan, plan_of
from tests.worlds.shrinking import Shrinking
from tests.worlds.story import story
from tests.worlds.world import World

ROOT = Path(__file__).parents[2]
BATCHES, EACH = 20, 10


@pytest.fixture(autouse=True)
def lean() -> Iterator[None]:
    """What is there before a world is not looked at when it is collected."""
    gc.freeze()
    yield
    gc.unfreeze()


def run(seed: int, traces: bool = False) -> World:
    world = World(plan_of(seed), traces)
    world.run()
    return world


def told(world: World) -> str:
    """A failure is a story, of the same world with a trace."""
    return "\n".join(story(run(world.plan.seed, traces=True)))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_are_kept(batch: int) -> None:
    for seed in range(1000 + batch * EACH, 1000 + (batch + 1) * EACH):
        world = run(seed)
        assert not broken(world), told(world)


@pytest.mark.parametrize("name", KEPT)
def test_what_was_found_is_mended(name: str) -> None:
    world = either.run(KEPT[name], traces=True)
    assert not either.broken(world), "\n".join(story(world))


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_what_was_found_would_be_found_again(name: str) -> None:
    [mutant] = [one for one in EVERY if one.name == name]
    assert hunt(mutant, 0, 0).startswith("kept | ")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 13])
def test_a_seed_replays_exactly(seed: int) -> None:
    """In this process, in which worlds have been before, and in others."""
    here = [run(seed, traces=True).trace for _ in range(2)]
    assert here[0] == here[1]
    assert here[0] is not None
    command = [sys.executable, "-m", "tests.worlds", "--seed", str(seed), "--trace"]
    there = [
        subprocess.run(
            command,
            cwd=ROOT,
            env={"PYTHONHASHSEED": salt, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    ]
    assert there[0] == there[1]
    ours = "\n".join(story(run(seed, traces=True), everything=True))
    assert there[0].strip() == ours.strip()


def test_worlds_differ() -> None:
    plans = [plan_of(seed) for seed in range(300)]
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert len(kinds) == 26
    assert len({plan.calls for plan in plans}) == 300


def test_a_broken_promise_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A promise that nobody makes: that no call to Put is answered."""
    from tests.worlds import invariants

    def answered(world: World) -> Iterator[str]:
        for seen in world.caller.seen:
            if seen.plan.method.endswith("Put") and seen.how == "answered":
                yield str(seen)

    ours = invariants.Promise("none is answered", "", answered)
    monkeypatch.setattr(invariants, "PROMISES", [ours])
    plan = plan_of(13)
    small = Shrinking(plan, ours.name).run()
    assert len(small.calls) == 1 < len(plan.calls)
    assert not small.faults
    assert len(small.servers) == 1
    world = World(small, traces=True)
    world.run()
    lines = "\n".join(story(world))
    assert "BROKEN: none is answered" in lines
    assert f"begins: {small.calls[0]}" in lines


def test_calls_to_who_does_not_answer_would_be_noticed() -> None:
    """No planted fault breaks this promise, which much defends: so its check is asked
    of calls that were never made."""
    servers = tuple(ServerPlan(f"10.0.0.{n}:50051", "lbclient") for n in (1, 2))
    fault = Fault(2.0, "freeze", 0, 30.0)
    calls = (CallPlan(1, 1.0, "/world.World/Get", 5.0, 0.0),)
    world = World(Plan(1, 5.0, 0.001, (), servers, (fault,), calls, probes=False))
    world.run()
    assert not broken(world)
    world.sent[servers[0].address] = [20.0, 21.0, 22.0, 23.0]
    assert [name for name, _ in broken(world)] == ["who does not answer gets few calls"]


def test_the_page_lists_the_promises() -> None:
    """In order, with the page that makes each."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    listed = re.findall(r"^\| ([^|]+) \| \[[^]]+\]\(([^)]+)\) \|", page, re.MULTILINE)
    wanted = [(name, place.replace("README", "../README")) for name, place in places()]
    assert listed == [*wanted, ("nothing spins", "reliability.md")]


def test_mutants_are_of_the_code_that_is_there() -> None:
    for mutant in EVERY:
        source = (ROOT / "lbclient" / mutant.file).read_text()
        assert source.count(mutant.old) == 1, mutant.name


@pytest.mark.slow
def test_a_planted_fault_is_found() -> None:
    [mutant] = [one for one in MUTANTS if one.name == "every method is idempotent"]
    assert "what is not idempotent is executed once" in hunt(mutant, 0, 40)
