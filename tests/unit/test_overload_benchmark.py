"""What `benchmarks.overload` calls missed."""

from dataclasses import replace

import pytest

from benchmarks.overload import Figures, Flood, missed

RUN = Figures(
    work="emulated",
    kind="lbclient",
    offered=2.0,
    goodput=0.96,
    p50=0.05,
    p99=0.19,
    admitted=0.5,
    refused=0.5,
    late=0.0,
    normal_after=0.0,
    variation=0.01,
    lateness=0.001,
    memory_growth=1.0,
    by_second=[],
)
USUAL = replace(RUN, offered=0.8, goodput=0.8, p99=0.1)
FLOOD = Flood(
    work="emulated",
    critical=0.995,
    sheddable=0.04,
    p99=0.1,
    goodput=1.0,
    lost={},
    lost_at_once=0,
    requests=750,
    lateness=0.001,
)


def test_what_is_promised_holds() -> None:
    tenfold = replace(RUN, offered=10.0, goodput=0.91)
    assert missed([USUAL, RUN, tenfold], [FLOOD]) == []


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (replace(RUN, goodput=0.94), "at 2 x goodput is 0.940, target 0.95"),
        (replace(RUN, offered=10.0, goodput=0.89), "at 10 x goodput is 0.890, target"),
        (replace(RUN, p99=0.21), "at 2 x p99 is  210 ms, target  200 ms"),
        (replace(RUN, normal_after=5.5), "at 2 x normal after 5.5 s"),
    ],
)
def test_each_target_can_be_missed(run: Figures, said: str) -> None:
    (found,) = missed([USUAL, run], [FLOOD]) or []
    assert found.startswith(said)


def test_in_the_spike_what_is_critical_is_served() -> None:
    (found,) = missed([], [replace(FLOOD, critical=0.993)]) or []
    assert found == "in the spike CRITICAL is 99.30%, target 99.4%"


def test_only_the_emulated_processor_is_judged() -> None:
    burnt = replace(RUN, work="burn", goodput=0.5)
    bare = replace(RUN, kind="grpcio", goodput=0.0)
    assert missed([burnt, bare], [replace(FLOOD, work="burn", critical=0.5)]) is None
    assert missed([burnt, bare, RUN], []) == []


def test_without_the_usual_load_p99_is_not_judged() -> None:
    assert missed([replace(RUN, p99=9.0)], []) == []
