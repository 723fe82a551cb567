"""The control that makes utilization equal: what moves a weight, and how far."""

from math import e, exp, log
from statistics import fmean

import pytest

from lbclient.core.model import Endpoint, LoadReport, Outcome, Verdict
from lbclient.pickers.equalizer import Equalizer
from lbclient.testing import FakeNode, fake_nodes


def equalizer(
    gain: float = 0.3, bound: float = 1.0, blackout: float = 1.0
) -> Equalizer:
    return Equalizer(gain, bound, blackout, expiration=180.0)


def report(nodes: tuple[FakeNode, ...], *utilizations: float, now: float) -> None:
    for node, utilization in zip(nodes, utilizations, strict=True):
        node.load.observe(LoadReport(utilization=utilization, qps=100.0), now)


def test_before_any_step_all_are_equal() -> None:
    assert equalizer().weights(fake_nodes(3)) == [1.0, 1.0, 1.0]


def test_a_step_moves_weights_by_the_gain_against_utilization() -> None:
    nodes, control = fake_nodes(2), equalizer()
    report(nodes, 0.8, 0.4, now=10.0)
    control.step(nodes, 10.0)
    busy, idle = control.weights(nodes)
    assert idle / busy == pytest.approx(2**0.3)
    assert busy + idle == pytest.approx(2.0)


def test_the_same_report_moves_a_weight_once() -> None:
    """A stale one would drive it to the bound: it cannot see what a step did."""
    nodes, control = fake_nodes(2), equalizer()
    report(nodes, 0.8, 0.4, now=10.0)
    control.step(nodes, 10.0)
    once = control.weights(nodes)
    for second in range(11, 100):
        control.step(nodes, second)
    assert control.weights(nodes) == pytest.approx(once)


def test_machines_of_different_speed_come_to_equal_utilization() -> None:
    nodes, control = fake_nodes(4), equalizer()
    speeds = 1.0, 2.5, 1.0, 2.5
    for second in range(2, 60):
        shares = control.weights(nodes)
        used = [s / speed for s, speed in zip(shares, speeds, strict=True)]
        report(nodes, *used, now=second)
        control.step(nodes, second)
    assert max(used) / min(used) < 1.001


def test_who_is_full_for_long_loses_weight_soon() -> None:
    """It reports 1 and no more, if it is asked for eight times what it can do. Half the
    backends are 16 times as large, and all have 0.85 of what they can do together."""
    nodes, control = fake_nodes(4), equalizer(bound=3.0)
    sizes = 1.0, 16.0, 1.0, 16.0
    for second in range(2, 20):
        asked = [
            0.85 * share * sum(sizes) / 4 / size
            for share, size in zip(control.weights(nodes), sizes, strict=True)
        ]
        report(nodes, *(min(1.0, used) for used in asked), now=second)
        control.step(nodes, second)
    assert max(asked) < 1.0, "1.9 where steps are by what is reported"
    assert min(asked) > 0.7


@pytest.mark.parametrize(
    ("full", "others", "seconds"),
    [(0.94, 0.8, 20), (0.96, 0.93, 20), (1.0, 0.8, 3), (1.01, 0.8, 20)],
)
def test_others_lose_it_as_they_report(
    full: float, others: float, seconds: int
) -> None:
    """Who is not full, or hardly more than the others, or for a moment, or tells by how
    much it is."""
    nodes, control = fake_nodes(3), equalizer(bound=3.0)
    for second in range(2, 2 + seconds):
        report(nodes, full, others, others, now=second)
        control.step(nodes, second)
    one, other, _ = control.weights(nodes)
    lead = 2.0  # steps' worth of the first difference, at once
    assert log(other / one) <= 0.3 * (seconds + lead) * log(full / others) + 1e-9


def test_two_reports_that_are_far_apart_are_no_long_time() -> None:
    nodes, control = fake_nodes(3), equalizer(bound=3.0)
    for second in (2, 5):
        report(nodes, 1.0, 0.9, 0.9, now=second)
        control.step(nodes, second)
    one, other, _ = control.weights(nodes)
    steps, lead = 2.0, 2.0
    assert log(other / one) <= 0.3 * (steps + lead) * log(1.0 / 0.9) + 1e-9


def test_errors_of_long_ago_cost_no_weight() -> None:
    """Without requests both numbers fade to nothing, but never their ratio."""
    nodes, control = fake_nodes(2), equalizer()
    ill, well = nodes
    for second in range(2, 60):
        faded = exp(-second / 2.0)
        ill.load.observe(LoadReport(0.02, 3.0 * faded, 1.5 * faded), second)
        well.load.observe(LoadReport(0.02, 3.0 * faded, 0.0), second)
        control.step(nodes, second)
    assert control.weights(nodes)[0] > 0.6


def test_weights_fade_while_there_is_nothing_to_do() -> None:
    """They would starve a backend that is as good as others, and nobody would know."""
    nodes, control = fake_nodes(2), equalizer()
    report(nodes, 0.9, 0.3, now=2.0)
    control.step(nodes, 2.0)
    learned = control.weights(nodes)
    for second in range(3, 60):
        control.step(nodes, second)
    assert control.weights(nodes) == pytest.approx(learned)
    report(nodes, 0.02, 0.02, now=60.0)
    control.step(nodes, 60.0)
    apart = abs(learned[0] - learned[1])
    for second in range(61, 180):
        control.step(nodes, second)
    assert control.weights(nodes) == pytest.approx([1.0, 1.0], abs=0.1 * apart)


def test_what_the_resolver_says_does_not_fade() -> None:
    nodes = tuple(
        FakeNode(Endpoint(f"10.0.0.{weight}:1", weight=weight)) for weight in (1, 3)
    )
    control = equalizer()
    for second in range(2, 180):
        report(nodes, 0.01, 0.01, now=second)
        control.step(nodes, second)
    light, heavy = control.weights(nodes)
    assert heavy / light == pytest.approx(e, rel=0.15)  # at the bound


@pytest.mark.parametrize("memory", [1.0, 2.0, 5.0, 10.0])
def test_a_large_gain_does_not_swing(memory: float) -> None:
    """Without a lead they are 18 % apart after 40 s, with reports over 10 s."""
    nodes, control = fake_nodes(2), equalizer(gain=2.0)
    kept = exp(-1.0 / memory)
    said = [1.0, 0.4]
    offs = []
    for second in range(2, 62):
        report(nodes, *said, now=second)
        control.step(nodes, second)
        shares = control.weights(nodes)
        used = [s / speed for s, speed in zip(shares, (1.0, 2.5), strict=True)]
        said = [kept * s + (1.0 - kept) * u for s, u in zip(said, used, strict=True)]
        offs.append(max(used) / min(used) - 1.0)
    assert max(offs[40:]) < 0.05


def test_the_bound_limits_what_a_lie_can_draw() -> None:
    nodes, control = fake_nodes(20), equalizer()
    for second in range(2, 300):
        report(nodes, 0.01, *[0.7] * 19, now=second)
        control.step(nodes, second)
    liar, *others = control.weights(nodes)
    assert max(others) == pytest.approx(min(others))
    assert liar / others[0] <= exp(1.0 + 1.0 / 19) + 0.001
    assert liar < e


SPEEDS = 1.0, 1.0, 1.0, 5.0, 5.0


def test_the_bound_is_counted_from_the_mean_of_all() -> None:
    """From the median two fast machines of five would reach it, at 2.7 times."""
    nodes, control = fake_nodes(5), equalizer()
    for second in range(2, 60):
        shares = control.weights(nodes)
        used = [s / speed for s, speed in zip(shares, SPEEDS, strict=True)]
        report(nodes, *used, now=second)
        control.step(nodes, second)
    assert max(used) / min(used) < 1.01


def test_where_it_holds_nearly_all_it_gets_wider() -> None:
    """Half the machines are 16 times as large: at e^-1 and e the small ones are full.
    Once they are alike again a liar draws no more than elsewhere."""
    nodes, control = fake_nodes(10), equalizer()
    for second in range(2, 120):
        shares = control.weights(nodes)
        used = [s / size for s, size in zip(shares, [1, 16] * 5, strict=True)]
        for node, took in zip(nodes, [0.02, 0.01] * 5, strict=True):
            serve(node, 1, took, second)
        report(nodes, *used, now=second)
        control.step(nodes, second)
    assert max(used) / min(used) < 1.2
    for second in range(120, 300):
        report(nodes, 0.01, *control.weights(nodes)[1:], now=second)
        control.step(nodes, second)
    liar, *others = control.weights(nodes)
    assert liar / min(others) <= exp(1.0 + 1.0 / 9) + 0.01


@pytest.mark.parametrize(
    ("liars", "count", "took"), [(4, 10, 0.005), (1, 2, 0.01), (5, 10, 0.01)]
)
def test_those_that_lie_do_not_widen_it(liars: int, count: int, took: float) -> None:
    """Half of the others are slow, and stand at the bound below. Fewer than half are
    too few even if they answer sooner; half do not, as they have more to do."""
    nodes, control = fake_nodes(count), equalizer()
    speeds = ([1.0, 2.5] * count)[: count - liars]
    for second in range(2, 300):
        shares = control.weights(nodes)
        for rank, node in enumerate(nodes):
            serve(node, 1, took if rank < liars else 0.01, second)
        used = [2 * s / v for s, v in zip(shares[liars:], speeds, strict=True)]
        report(nodes, *[0.1] * liars, *used, now=second)
        control.step(nodes, second)
    shares = control.weights(nodes)
    assert max(shares) / min(shares) <= e**2 + 0.01


def test_so_it_is_where_nobody_reports() -> None:
    nodes, control = fake_nodes(5), equalizer()
    for second in range(2, 120):
        shares = control.weights(nodes)
        for node, share, speed in zip(nodes, shares, SPEEDS, strict=True):
            serve(node, round(200 * share), 0.05 / speed, second)
        control.step(nodes, second)
    used = [s / speed for s, speed in zip(shares, SPEEDS, strict=True)]
    assert max(used) / min(used) < 1.03


def test_a_liar_at_its_bound_leaves_the_others_room() -> None:
    """For an hour; they drifted to the opposite bound, where no difference is left."""
    nodes, control = fake_nodes(5), equalizer()
    for second in range(2, 600):
        others = (0.7, 0.7, 0.7, 0.7 + 0.2 * (second % 2))
        report(nodes, 0.01, *others, now=second)
        control.step(nodes, second)
    speeds = 1.0, 1.0, 3.0, 3.0
    for second in range(600, 700):
        shares = control.weights(nodes)[1:]
        used = [s / speed for s, speed in zip(shares, speeds, strict=True)]
        report(nodes, 0.01, *used, now=second)
        control.step(nodes, second)
    assert max(used) / min(used) < 1.05


def test_one_lie_does_not_level_the_others() -> None:
    nodes, control = fake_nodes(5), equalizer()
    speeds = 1.0, 2.0, 1.0, 2.0
    for second in range(2, 300):
        shares = control.weights(nodes)[1:]
        used = [s / speed for s, speed in zip(shares, speeds, strict=True)]
        report(nodes, 1000.0, *used, now=second)
        control.step(nodes, second)
    assert max(used) / min(used) < 1.01


def test_bursts_that_each_has_in_turn_do_not_drive_all_to_the_bound() -> None:
    nodes, control = fake_nodes(5), equalizer()
    speeds = 1.0, 3.0, 1.0, 3.0, 1.0
    ratios = []
    for second in range(2, 502):
        shares = control.weights(nodes)
        ratios.append(shares[1] / shares[0])
        used = [s / speed for s, speed in zip(shares, speeds, strict=True)]
        used[second % 5] *= 4
        report(nodes, *used, now=second)
        control.step(nodes, second)
    assert 2.0 < fmean(ratios[-5:]) < 4.0


def test_the_blackout_is_for_those_that_became_ready() -> None:
    nodes, control = fake_nodes(3), equalizer(blackout=5.0)
    nodes[0].load.enter_ready(8.0)
    report(nodes, 0.1, 0.8, 0.4, now=10.0)
    control.step(nodes, 10.0)
    assert control.weights(nodes)[0] == pytest.approx(1.0)
    control.step(nodes, 13.0)
    assert control.weights(nodes)[0] > 1.1


@pytest.mark.parametrize("utilization", [0.0, float("nan"), float("inf"), 1e7])
def test_who_reports_nothing_sound_gets_the_mean(utilization: float) -> None:
    nodes, control = fake_nodes(3), equalizer()
    report(nodes, utilization, 0.8, 0.4, now=10.0)
    control.step(nodes, 10.0)
    assert control.weights(nodes)[0] == pytest.approx(1.0)


def test_an_expired_report_counts_no_more() -> None:
    nodes, control = fake_nodes(2), equalizer()
    report(nodes, 0.8, 0.4, now=10.0)
    control.step(nodes, 190.0)
    assert control.weights(nodes) == [1.0, 1.0]


def test_whose_reports_are_missed_is_no_level_for_the_others() -> None:
    """Old ones of an idle hour would drive all who report to the bound."""
    nodes, control = fake_nodes(5), equalizer()
    report(nodes, *[0.2] * 5, now=10.0)
    control.step(nodes, 10.0)
    for second in range(11, 60):
        report(nodes[:2], 0.8, 0.8, now=second)
        control.step(nodes, second, {node.load for node in nodes[2:]})
    assert control.weights(nodes) == pytest.approx([1.0] * 5)


def test_one_that_was_full_for_a_moment_keeps_its_weight() -> None:
    nodes, control = fake_nodes(3), equalizer()
    report(nodes, 0.8, 0.4, 0.6, now=10.0)
    control.step(nodes, 10.0)
    before = control.weights(nodes)
    control.step(nodes[1:], 11.0)
    assert control.weights(nodes) == pytest.approx(before, rel=0.05)


def test_one_that_left_for_good_is_forgotten() -> None:
    nodes, control = fake_nodes(3), equalizer()
    report(nodes, 0.8, 0.4, 0.6, now=10.0)
    control.step(nodes, 10.0)
    assert repr(control) == "<equalizer of 3 weights>"
    report(nodes[1:], 0.5, 0.5, now=190.0)
    control.step(nodes[1:], 190.0)
    assert repr(control) == "<equalizer of 2 weights>"


def serve(node: FakeNode, count: int, latency: float, now: float) -> None:
    for _ in range(count):
        node.load.begin()
        node.load.finish(Outcome(Verdict.SERVED, latency), now)


@pytest.mark.parametrize("telling", [0, 2])
def test_who_says_nothing_comes_to_as_many_of_our_requests_as_others(
    telling: int,
) -> None:
    """A slow machine that is silent: by Little's law, not by a guess."""
    nodes, control = fake_nodes(4), equalizer()
    speeds = 1.0, 2.5, 1.0, 2.5
    for second in range(2, 60):
        shares = control.weights(nodes)
        for node, share, speed in zip(nodes, shares, speeds, strict=True):
            serve(node, round(200 * share), 0.05 / speed, second)
        used = [s / speed for s, speed in zip(shares, speeds, strict=True)]
        report(nodes[:telling], *used[:telling], now=second)
        control.step(nodes, second)
    assert max(used) / min(used) < 1.03


def test_what_a_resolver_says_of_a_silent_backend_stays() -> None:
    nodes, control = fake_nodes(2), equalizer()
    nodes[0].endpoint = Endpoint("b0:1", weight=2.0)
    for second in range(2, 60):
        for node, share in zip(nodes, control.weights(nodes), strict=True):
            serve(node, round(200 * share), 0.01, second)
        control.step(nodes, second)
    heavy, light = control.weights(nodes)
    assert heavy / light == pytest.approx(2.0, rel=0.02)


def test_a_silent_backend_is_not_judged_by_a_few_requests() -> None:
    nodes, control = fake_nodes(2), equalizer()
    for second in range(2, 10):
        serve(nodes[0], 1, 0.5, second)
        serve(nodes[1], 100, 0.01, second)
        control.step(nodes, second)
    assert control.weights(nodes) == [1.0, 1.0]


def test_a_silent_backend_that_counts_anew_is_judged_anew() -> None:
    nodes, control = fake_nodes(2), equalizer()
    for second in range(2, 10):
        for node in nodes:
            serve(node, 1000, 0.01, second)
        control.step(nodes, second)
    assert control.weights(nodes) == [1.0, 1.0]
    nodes = (nodes[0], fake_nodes(2)[1])
    for second in range(10, 30):
        serve(nodes[0], 1000, 0.01, second)
        serve(nodes[1], 100, 0.2, second)
        control.step(nodes, second)
    swift, slow = control.weights(nodes)
    assert slow < 0.7 * swift


def test_a_silent_backend_that_fails_at_once_does_not_look_idle() -> None:
    nodes, control = fake_nodes(2), equalizer()
    for second in range(2, 20):
        for node in nodes:
            serve(node, 20, 0.01, second)
        for _ in range(20):
            nodes[0].load.begin()
            nodes[0].load.finish(Outcome(Verdict.FAILED, 0.0), second)
        control.step(nodes, second)
    failing, sound = control.weights(nodes)
    assert failing < 0.7 * sound


def test_what_a_backend_said_before_it_fell_silent_is_no_change_to_see() -> None:
    """It had most of all then, and as much as the other now, without our doing."""
    nodes, control = fake_nodes(2), equalizer()
    report(nodes, 0.8, 0.4, now=10.0)
    control.step(nodes, 10.0)
    for second in range(11, 20):
        for node in nodes:
            serve(node, 100, 0.01, second)
        report(nodes[1:], 0.4, now=second)
        control.step(nodes, second, {nodes[0].load})
    before = control.weights(nodes)
    report(nodes, 0.4, 0.4, now=20.0)
    control.step(nodes, 20.0)
    assert control.weights(nodes) == pytest.approx(before)


@pytest.mark.parametrize("eps", [100.0, 1e300])
def test_errors_count_as_utilization(eps: float) -> None:
    nodes, control = fake_nodes(2), equalizer()
    for node, errors in zip(nodes, (eps, 0.0), strict=True):
        node.load.observe(LoadReport(utilization=0.5, qps=100.0, eps=errors), 10.0)
    control.step(nodes, 10.0)
    failing, sound = control.weights(nodes)
    assert log(sound / failing) == pytest.approx(0.3 * log(1.5 / 0.5))


def test_errors_that_only_we_saw_count_too() -> None:
    nodes, control = fake_nodes(2), equalizer()
    for _ in range(10):
        nodes[0].load.begin()
        nodes[0].load.finish(Outcome(Verdict.FAILED, 0.0), 10.0)
    report(nodes, 0.5, 0.5, now=10.0)
    control.step(nodes, 10.0)
    failing, sound = control.weights(nodes)
    assert log(sound / failing) == pytest.approx(0.3 * log(1.5 / 0.5))


def test_what_parts_sum_up_to_is_what_a_look_at_all_finds() -> None:
    nodes = fake_nodes(48)
    by_parts, at_once = equalizer(), equalizer()
    for second in range(2, 30):
        for i, node in enumerate(nodes):
            said = LoadReport(utilization=0.2 + i % 7 / 10, qps=100.0)
            node.load.observe(said, second + i / 100)
        for first in range(0, len(nodes), 16):
            part = nodes[first : first + 16]
            for control in (by_parts, at_once):
                for node in part:
                    control.step_one(node, second + 0.5)
                control.step_part(part, second + 0.5, set())
            by_parts.sum_up(part, begins=first == 0)
        for control in (by_parts, at_once):
            control.end_round(nodes, second + 0.5)
    assert at_once.weights_of(nodes) != pytest.approx([1.0] * len(nodes), rel=0.1)
    assert by_parts.weights_of(nodes) == pytest.approx(at_once.weights_of(nodes))
    assert fmean(by_parts.weights_of(nodes)) == pytest.approx(1.0)


def test_errors_of_unknown_many_requests_are_no_failures() -> None:
    """Reporters of other languages may tell `eps` alone."""
    nodes, control = fake_nodes(2), equalizer()
    for node, eps in zip(nodes, (0.5, 0.0), strict=True):
        node.load.observe(LoadReport(utilization=0.3, qps=0.0, eps=eps), 10.0)
    control.step(nodes, 10.0)
    assert control.weights(nodes) == pytest.approx([1.0, 1.0])


def test_sums_of_many_do_not_count_once_there_are_few() -> None:
    """Half of a round was summed up when as many others were left."""
    nodes = [FakeNode(Endpoint(f"h{n}:1", 100.0 if n < 2 else 1.0)) for n in range(4)]
    gone, left, control = nodes[:2], nodes[2:], equalizer(blackout=0.0)
    for node in nodes:
        node.load.ready_at = 0.0
        node.load.observe(LoadReport(utilization=0.5, qps=10.0), 20.0)
        control.step_one(node, 20.0)
    control.end_round(nodes, 20.0)
    control.sum_up(gone, begins=True)
    control.step(left, 21.0)
    assert control.weights_of([FakeNode(Endpoint("new:1"))]) == [1.0]
