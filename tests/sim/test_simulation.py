"""The simulated fleet does what arithmetic says, and runs what production runs."""

from dataclasses import replace
from statistics import fmean

import pytest

from lbclient.core.errors import ConfigError
from lbclient.core.protocols import PickerFactory
from lbclient.core.refusal import Refusal
from lbclient.core.retries.ending import UNAVAILABLE, Ending
from lbclient.pickers import PICKERS, WeightedRoundRobin
from lbclient.sim import SCENARIOS, Result, Scenario, simulate
from lbclient.sim.oracle import oracle
from lbclient.sim.result import variation
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw
from lbclient.subsets import subset

SMALL = Scenario(clients=4, backends=8, subset_size=4, warm_up=4.0, window=10.0)
MIXED = replace(SMALL, speeds=(1.0, 2.5))


@pytest.mark.slow
@pytest.mark.parametrize("picker", PICKERS)
def test_the_same_seed_has_the_same_result(picker: str) -> None:
    short = replace(MIXED, warm_up=1.0, window=2.0)
    once, again, other = (
        simulate(short, picker, load=0.7, seed=seed) for seed in (5, 5, 6)
    )
    assert once == again
    assert once != other


@pytest.mark.slow
@pytest.mark.parametrize("picker", PICKERS)
def test_no_work_is_lost_below_capacity(picker: str) -> None:
    """What the backends did is what the requests of the window cost.

    But for those under way at its ends, a few of tens of thousands.
    """
    traffic = draw(SMALL, 0.5, seed=1)
    result = simulate(SMALL, picker, load=0.5, seed=1, traffic=traffic)
    cost = sum(
        cost
        for at, cost in zip(traffic.times, traffic.costs, strict=True)
        if at >= SMALL.warm_up
    )
    processors = SMALL.backends * SMALL.cores
    assert result.mean == pytest.approx(cost / processors / SMALL.window, rel=0.01)
    assert result.errors == 0.0
    assert result.attempts == 1.0


def test_round_robin_keeps_slow_machines_busier_by_how_slow_they_are() -> None:
    """All get as many requests, so a fast one is 2.5 times less busy.

    The busiest over the mean is 1 / mean(1, 1 / 2.5), and no luck in what costs what.
    """
    scenario = replace(MIXED, costs="equal")
    result = simulate(scenario, "round_robin", load=0.5, seed=1)
    assert result.spread == pytest.approx(1 / fmean([1.0, 1 / 2.5]), rel=0.02)


def test_a_queue_is_as_long_as_theory_says() -> None:
    """A processor shared by all (M/M/1-PS): the mean time is cost / (1 - load).

    Of 60,000 requests, to 5 %.
    """
    scenario = Scenario(
        clients=1, backends=1, subset_size=1, cores=1, costs="exponential",
        full=10_000, round_trip=0.0, warm_up=20.0, window=999.0,
    )  # fmt: skip
    simulation = Simulation(
        scenario, PICKERS["random"], draw(scenario, 0.6, seed=1), seed=1
    )
    simulation.run()
    assert fmean(simulation.latencies) == pytest.approx(
        scenario.cost / (1 - 0.6), rel=0.05
    )


def test_clients_connect_as_channels_do() -> None:
    simulation = Simulation(SMALL, PICKERS["random"], draw(SMALL, 0.5, seed=1), seed=1)
    for number, client in enumerate(simulation.clients):
        chosen = [node.endpoint.task for node in client.pool.ready]
        assert chosen == subset(SMALL.subset, number, SMALL.backends, SMALL.subset_size)


def test_a_sinkhole_draws_no_more_than_a_share() -> None:
    """Errors count as requests: SRE book, ch. 20. Round robin knows nothing of them.

    Its share is that of its two clients of four: of 14,000 requests, to 4 %.
    """
    scenario = replace(SMALL, sinkholes=1, ejection=False)
    blind = simulate(scenario, "round_robin", load=0.5, seed=1)
    assert blind.errors == pytest.approx(1 / SMALL.backends, rel=0.04)
    assert blind.sinkhole == pytest.approx(1.0, rel=0.06)
    wise = simulate(scenario, "least_loaded", load=0.5, seed=1)
    assert wise.sinkhole < 0.2


@pytest.mark.parametrize("picker", ["round_robin", "prequal"])
def test_clients_eject_a_sinkhole_whatever_they_pick_by(picker: str) -> None:
    """It keeps the trial calls. Five errors of a hundred answers eject it."""
    ejecting = simulate(replace(SMALL, sinkholes=1), picker, load=0.5, seed=1)
    assert ejecting.sinkhole < 0.02
    assert ejecting.errors < 0.01


def test_slowed_backends_are_busier() -> None:
    scenario = replace(SMALL, slowed=2, slowed_after=5.0, slowed_speed=0.5)
    result = simulate(scenario, "round_robin", load=0.4, seed=1)
    before = [fmean(row[i] for row in result.seconds[:5]) for i in range(8)]
    after = [fmean(row[i] for row in result.seconds[6:]) for i in range(8)]
    ratios = sorted(new / old for old, new in zip(before, after, strict=True))
    assert min(ratios[-2:]) > 1.5 > max(ratios[:-2])
    assert max(variation(result, i, seconds=1) for i in range(8)) > 0.2


def test_large_machines_have_more_processors() -> None:
    """In turn, as many requests each: a third of the work of one of three times as
    many processors. Loads are shares of all of them."""
    scenario = replace(SMALL, sizes=(1, 3))
    assert scenario.rate(0.5) == pytest.approx(2.0 * SMALL.rate(0.5))
    used = sorted(simulate(scenario, "round_robin", load=0.4, seed=1).utilization)
    assert fmean(used[4:]) / fmean(used[:4]) == pytest.approx(3.0, rel=0.1)


def test_clients_eject_a_gray_backend() -> None:
    gray = replace(SMALL, gray=1, gray_factor=10.0, eject_late=True)
    for picker in ("round_robin", "weighted_least_loaded"):
        assert simulate(gray, picker, load=0.3, seed=1).sinkhole <= 0.1
        as_it_is = simulate(replace(gray, eject_late=False), picker, load=0.3, seed=1)
        assert as_it_is.sinkhole > 0.5


def test_a_gray_backend_takes_long_and_no_more_of_its_processors() -> None:
    gray = replace(SMALL, gray=1, gray_factor=10.0, ejection=False)
    ill = simulate(gray, "round_robin", load=0.3, seed=1)
    well = simulate(SMALL, "round_robin", load=0.3, seed=1)
    assert ill.sinkhole == pytest.approx(1.0, abs=0.05)
    assert ill.utilization[0] == pytest.approx(well.utilization[0], rel=0.05)
    assert ill.p99 > 9 * SMALL.cost > well.p50
    assert ill.p50 == pytest.approx(well.p50, rel=0.25)


def test_what_goes_together_with_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="neighbour_cores"):
        replace(SMALL, sizes=(1, 2), neighbour_cores=(2,))
    with pytest.raises(ConfigError, match="gray"):
        replace(SMALL, gray=1, event_loop=True)
    with pytest.raises(ConfigError, match="gray"):
        replace(SMALL, gray=SMALL.backends)


def test_a_neighbour_takes_from_what_is_there() -> None:
    """Half of the time, 0.6 of the speed: so 0.8 of it is what loads are shares of."""
    scenario = replace(SMALL, neighbour=0.6, neighbour_period=2.0)
    assert scenario.rate(0.5) == pytest.approx(0.8 * SMALL.rate(0.5))
    calm = simulate(SMALL, "round_robin", load=0.5, seed=1)
    shaken = simulate(scenario, "round_robin", load=0.5, seed=1)
    assert shaken.spread > calm.spread


def test_a_backend_may_use_what_its_neighbour_leaves() -> None:
    """Half of the time all of a machine of 8 cores, and else its own 2."""
    own = replace(SMALL, cores=2, neighbour_period=2.0)
    crowded, roomy = (
        simulate(replace(own, neighbour_cores=cores), "p2c", load=1.5, seed=1)
        for cores in ((2,), (2, 8))
    )
    assert max(crowded.utilization) <= 1.001
    assert max(roomy.utilization) > 1.2
    assert roomy.p99 < crowded.p99


def test_too_many_kinds_of_neighbours_are_refused() -> None:
    with pytest.raises(ConfigError, match="neighbour_cores"):
        replace(SMALL, neighbour_cores=(1, 2, 3))
    with pytest.raises(ConfigError, match="neighbour_cores"):
        replace(SMALL, neighbour_cores=(1, 2), event_loop=True)


def test_normal_costs_have_their_mean_and_are_above_zero() -> None:
    costs = draw(replace(SMALL, costs="normal"), 0.5, seed=1).costs
    assert min(costs) > 0.0
    assert fmean(costs) == pytest.approx(SMALL.cost, rel=0.05)


def test_restarts_cost_capacity_until_they_are_over() -> None:
    often = replace(SMALL, restart_every=1.0, restart_lasts=3.0, restart_speed=0.25)
    busy = simulate(often, "least_loaded", load=0.5, seed=1)
    calm = simulate(SMALL, "least_loaded", load=0.5, seed=1)
    assert busy.mean > 1.1 * calm.mean


@pytest.mark.slow
def test_silence_and_lies_hurt_only_who_listens() -> None:
    for misfortune in ({"silent_share": 0.5}, {"liars": 1}, {"report_loss": 0.5}):
        scenario = replace(MIXED, **misfortune)
        assert simulate(scenario, "p2c", load=0.6, seed=1) == simulate(
            MIXED, "p2c", load=0.6, seed=1
        )
    lied_to = simulate(
        replace(MIXED, liars=1), "weighted_least_loaded", load=0.6, seed=1
    )
    told = simulate(MIXED, "weighted_least_loaded", load=0.6, seed=1)
    assert lied_to.spread > told.spread


def test_retries_stay_within_a_tenth() -> None:
    """SRE book, ch. 21: a fleet that refuses half has 1.1 times the attempts."""
    scenario = replace(SMALL, attempts=3)
    result = simulate(scenario, "round_robin", load=2.0, seed=1)
    assert result.errors > 0.3
    assert 1.05 < result.attempts < 1.11


@pytest.mark.parametrize("picker", ["random", "weighted_least_loaded"])
def test_a_retry_goes_where_the_request_was_not_yet(picker: str) -> None:
    """As a channel's does: three attempts find the one task of three that is well."""
    scenario = Scenario(
        clients=4, backends=3, subset_size=3, attempts=3, refusing=2, retry_ratio=2.0,
        warm_up=2.0, window=10.0,
    )  # fmt: skip
    assert simulate(scenario, picker, load=0.1, seed=1).errors == 0.0


def test_a_retry_may_go_anywhere_as_in_the_book() -> None:
    """At random three attempts miss the one task that is well in 8 of 27 cases."""
    scenario = Scenario(
        clients=4, backends=3, subset_size=3, attempts=3, refusing=2, retry_ratio=2.0,
        avoid_tried=False, warm_up=2.0, window=10.0,
    )  # fmt: skip
    errors = simulate(scenario, "random", load=0.1, seed=1).errors
    assert errors == pytest.approx(8 / 27, abs=0.05)


@pytest.mark.slow
def test_late_binding_cuts_the_tail_until_all_are_busy() -> None:
    """docs/simulator.md has three seeds of this and more."""
    without = replace(
        SCENARIOS["S1_homog"], clients=20, backends=20, subset_size=10, cores=1,
        warm_up=8.0, window=15.0,
    )  # fmt: skip
    late = replace(without, late_binding=1, refusal_cost=0.01)

    def play(scenario: Scenario, load: float) -> Result:
        return simulate(scenario, "weighted_least_loaded", load=load, seed=1)

    result = play(late, 0.5)
    assert result.p99 < 0.95 * play(without, 0.5).p99
    assert result.errors == 0.0
    assert 1.2 < result.attempts < 1.6
    assert play(late, 0.95).attempts < 1.05


def test_a_retry_is_held_back_like_any_request() -> None:
    """Where all was refused of late, a client that throttles sends few retries, too."""
    scenario = replace(SMALL, attempts=3, throttle=2.0, retry_ratio=2.0)
    simulation = Simulation(
        scenario, PICKERS["random"], draw(scenario, 0.1, seed=1), seed=1
    )
    client = simulation.clients[0]

    def retries(refusal: Refusal) -> int:
        """Of 5,000 requests that are all refused."""
        sent = 0
        for number in range(5000):
            client.budget.deposit()
            node = client.choose(number, now=0.0)
            assert node is not None
            ending = Ending(UNAVAILABLE, None, refusal)
            sent += client.settle(node, number, ending, now=0.0) is not None
        return sent

    assert retries(Refusal.DONT_RETRY) == 0
    assert 0 < retries(Refusal.OVERLOADED) < 150


@pytest.mark.slow
def test_throttled_clients_send_twice_what_is_accepted() -> None:
    """K = 2, over two minutes: of load 4 in, 1 served, 1 refused there, 2 here."""
    scenario = replace(
        SCENARIOS["overload_throttled"], clients=2, backends=2, subset_size=2,
        cores=1, warm_up=130.0, window=60.0, attempts=1,
    )  # fmt: skip
    result = simulate(scenario, "least_loaded", load=4.0, seed=1)
    assert result.throttled == pytest.approx(0.5, abs=0.1)
    assert result.attempts == pytest.approx(1.0 - result.throttled, abs=1e-9)


def test_prequal_asks_three_with_every_request() -> None:
    result = simulate(MIXED, "prequal", load=0.6, seed=1)
    assert result.probes == pytest.approx(3.0)
    assert result.errors == 0.0


def test_only_who_hears_too_seldom_asks() -> None:
    sparse = replace(MIXED, clients=40, cost=0.4, warm_up=10.0, window=30.0)
    assert simulate(MIXED, "weighted_least_loaded", load=0.7, seed=1).probes == 0.0
    result = simulate(sparse, "weighted_least_loaded", load=0.7, seed=1)
    assert 0.2 < result.probes < 1.0


def test_the_window_says_when_nothing_came() -> None:
    scenario = replace(SMALL, cost=900.0, warm_up=0.0, window=1.0)
    with pytest.raises(ValueError, match="no request"):
        simulate(scenario, "random", load=0.001, seed=1)


def test_a_picker_is_played_alike_by_its_name_and_by_its_class() -> None:
    """Reports for gRFC A58's weights are smoothed over 5 s in either case."""
    unequal = Scenario(
        clients=4,
        backends=4,
        subset_size=4,
        speeds=(1.0, 2.5),
        warm_up=12.0,
        window=4.0,
    )
    both: tuple[str | PickerFactory, ...] = "weighted_round_robin", WeightedRoundRobin
    named, made = (simulate(unequal, picker, load=0.5, seed=1) for picker in both)
    assert named == made


def test_an_oracle_beats_whoever_sees_less() -> None:
    ours, best = (
        simulate(MIXED, picker, load=0.7, seed=1)
        for picker in ("weighted_least_loaded", oracle())
    )
    assert best.p99 < 0.95 * ours.p99
    assert best.errors == 0.0


def test_who_leaves_gets_nothing_and_fails_nothing() -> None:
    scenario = replace(SMALL, leaving=2)
    result = simulate(scenario, "round_robin", load=0.5, seed=1)
    assert result.errors == 0.0
    assert max(result.seconds[-1][:2]) == 0.0 < min(result.seconds[-1][2:])


def test_a_crash_fails_what_was_there_and_no_more() -> None:
    scenario = replace(SMALL, restart_every=3.0, restart_away=1.0, restart_loses=True)
    result = simulate(scenario, "weighted_least_loaded", load=0.5, seed=1)
    # Three crashes in the window, of backends that each have some four requests.
    assert 0.0 < result.errors * result.requests < 60


def test_clients_eject_one_that_fails_a_part_of_one_method() -> None:
    scenario = replace(SMALL, failing=1, second_share=0.5, subset_size=8, window=20.0)
    with_it, without = (
        simulate(
            replace(scenario, ejection=ejects), "round_robin", load=0.5, seed=1
        ).errors
        for ejects in (True, False)
    )
    assert without == pytest.approx(0.3 * 0.5 / 8, rel=0.15)
    assert with_it < 0.7 * without


def test_latencies_are_of_those_that_do_not_wait() -> None:
    waits = replace(SMALL, wait=2.0, waiting_share=0.02)
    result = simulate(waits, "round_robin", load=0.3, seed=1)
    assert result.p99 < 0.2


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("restart_loses", {"restart_loses": True}),
        ("waiting_share", {"waiting_share": 0.5}),
        ("swing_lasts", {"swings": (1.0, 2.0)}),
        ("leaving", {"leaving": 40}),
        ("failing", {"failing": 1, "event_loop": True}),
    ],
)
def test_fields_that_say_nothing_alone_are_refused(
    name: str, fields: dict[str, object]
) -> None:
    with pytest.raises(ConfigError, match=name):
        Scenario(**fields)  # type: ignore[arg-type]
