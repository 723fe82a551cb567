"""The resize benchmark, tiny: what the servers counted is what was computed."""

from itertools import pairwise

import pytest

from benchmarks.resize import JOBS, Plan, Step, run
from lbclient.subsets import ALGORITHMS
from lbclient.subsets.properties import choose, churn

TINY = Plan(
    clients=4, subset_size=3, sizes=(9, 11, 8), at_once=4, before=0.2, during=0.2
)


def computed(job: str, old: int, new: int) -> tuple[int, int]:
    """How many connections the job opens and closes when the fleet is resized."""
    moved = churn(
        *(
            choose(ALGORITHMS[job], TINY.clients, backends, TINY.subset_size)
            for backends in (old, new)
        )
    )
    return sum(moved.opened), sum(moved.dropped)


async def test_a_resize_moves_what_churn_computes_and_fails_no_call(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said: list[Step] = []
    steps = await run(TINY, said.append)
    assert said == steps

    resizes = [*pairwise(TINY.sizes)]
    names = [*(f"{old} -> {new}" for old, new in resizes), "restart"]
    assert [(s.name, s.job) for s in steps] == [(n, j) for n in names for j in JOBS]
    assert [step.is_resize for step in steps] == [s.name != "restart" for s in steps]
    for step in steps:
        assert step.calls > 0
        assert step.failures == {}
    for job in JOBS:
        *resized, restarted = (step for step in steps if step.job == job)
        moved = [computed(job, old, new) for old, new in resizes]
        assert [(step.opened, step.closed) for step in resized] == moved
        counts = [(step.computed_opened, step.computed_closed) for step in resized]
        assert counts == moved
        assert sum(opened for opened, _ in moved) > 0
        # Each connection once, and those to the replacements, which are gone again.
        assert restarted.opened == restarted.closed
        assert restarted.opened >= TINY.clients * TINY.subset_size
    assert capfd.readouterr().err == "", "no process had anything to complain of"
