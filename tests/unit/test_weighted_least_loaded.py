"""Weighted least loaded: what draws a request, and what keeps it away."""

from random import Random

import pytest

from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.pickers import WeightedLeastLoaded
from lbclient.testing import FakeNode, fake_nodes

NOW = 100.0


def begin(node: FakeNode, count: int = 1) -> None:
    for _ in range(count):
        node.load.begin()


def finish(node: FakeNode, report: LoadReport | None = None, now: float = NOW) -> None:
    node.load.finish(Outcome(Verdict.SERVED, 0.02, report), now)


def picker(**options: float) -> WeightedLeastLoaded:
    return WeightedLeastLoaded(Random(1), **options)


def told(
    nodes: tuple[FakeNode, ...],
    *active: int | None,
    now: float = NOW,
    used: float = 0.5,
) -> None:
    """Each node answers one request, and says how many others it has."""
    for node, number in zip(nodes, active, strict=True):
        begin(node)
        finish(node, LoadReport(used, qps=100.0, active=number), now)


def test_without_reports_the_fewest_of_our_own_get_it() -> None:
    a, b, c = nodes = fake_nodes(3)
    begin(a, 2)
    begin(b, 1)
    begin(c, 3)
    assert picker().pick(nodes, NOW) is b


def test_idle_equals_take_turns() -> None:
    nodes, choice = fake_nodes(4), picker()
    for _ in range(20):
        four = [choice.pick(nodes, NOW) for _ in nodes]
        assert sorted(map(nodes.index, four)) == [0, 1, 2, 3]


def test_pickers_start_anywhere() -> None:
    nodes = fake_nodes(5)
    firsts = {WeightedLeastLoaded(Random(i)).pick(nodes, NOW) for i in range(50)}
    assert firsts == set(nodes)


def test_other_clients_requests_count() -> None:
    nodes, choice = fake_nodes(3), picker()
    choice.pick(nodes, NOW)
    told(nodes, 5, 0, 5)
    assert {choice.pick(nodes, NOW) for _ in range(3)} == {nodes[1]}


def test_what_was_told_of_others_fades_within_a_request() -> None:
    nodes, choice = fake_nodes(3), picker()
    choice.pick(nodes, NOW)
    told(nodes, 5, 0, 5)
    later = [choice.pick(nodes, NOW + 0.2) for _ in range(30)]  # 10 mean latencies
    assert [later.count(node) for node in nodes] == [10, 10, 10]


def test_what_was_told_is_good_for_longer_where_a_few_requests_are_long() -> None:
    """One of 50 takes 500 times as long: who has nine has long ones."""
    nodes, choice = fake_nodes(3), picker()
    choice.pick(nodes, NOW)
    for tick in range(1, 301):
        for node in nodes:
            begin(node)
            took = 10.0 if tick % 50 == 0 else 0.02
            node.load.finish(Outcome(Verdict.SERVED, took), NOW + 0.11 * tick)
    now = NOW + 34.0
    told(nodes, 9, 0, 9, now=now)
    choice.pick(nodes, now)
    mean = nodes[0].load.latency
    later = [choice.pick(nodes, now + 2.0 * mean) for _ in range(3)]
    assert later == [nodes[1]] * 3


def test_who_told_long_ago_is_taken_to_have_what_others_have() -> None:
    nodes, choice, now = fake_nodes(3), picker(), NOW
    told(nodes, 5, 0, 5)
    for _ in range(300):
        now += 0.01
        choice.pick(nodes, now)
        told(nodes[2:], 5, now=now)
    told(nodes[:1], 2, now=now)
    assert choice.pick(nodes, now) is nodes[0]


def test_requests_sent_after_the_report_are_added_to_it() -> None:
    nodes, choice = fake_nodes(2), picker()
    choice.pick(nodes, NOW)
    told(nodes, 4, 5)
    begin(nodes[0], 3)
    assert choice.pick(nodes, NOW) is nodes[1]


def test_requests_of_ours_in_the_report_count_once() -> None:
    nodes, choice = fake_nodes(2), picker()
    choice.pick(nodes, NOW)
    begin(nodes[0], 4)
    told(nodes, 4, 8)  # the four are ours
    assert choice.pick(nodes, NOW) is nodes[0]


def test_runnable_is_believed_before_active() -> None:
    nodes, choice = fake_nodes(2), picker()
    choice.pick(nodes, NOW)
    for node, active, runnable in zip(nodes, (2, 50), (9, 1), strict=True):
        begin(node)
        finish(node, LoadReport(0.5, 100.0, active=active, runnable=runnable))
    assert choice.pick(nodes, NOW) is nodes[1]


def test_an_absurd_count_hurts_only_who_tells_it() -> None:
    nodes, choice = fake_nodes(4), picker()
    now = NOW
    for _ in range(200):
        now += 0.001
        choice.pick(nodes, now)
        told(nodes, 4_000_000_000, 2, 2, 3, now=now)
    picks = [choice.pick(nodes, now) for _ in range(100)]
    assert picks.count(nodes[0]) == 0
    assert min(picks.count(node) for node in nodes[1:]) > 0


def busy(choice: WeightedLeastLoaded) -> float:
    """How busy it takes all to be, in per cent."""
    return float(repr(choice).split()[-5].rstrip("%"))


@pytest.mark.parametrize(
    ("active", "used", "power"), [(0, 0.9, 2), (1, 0.2, 2), (1, 0.4, 5), (1, 0.7, 8)]
)
def test_turns_give_way_where_requests_keep_backends_busy(
    active: int, used: float, power: float
) -> None:
    """Few requests do on one core. What else keeps them busy does not count."""
    nodes, choice, now = fake_nodes(4), picker(), NOW
    for _ in range(100):
        now += 0.1
        choice.pick(nodes, now)
        told(nodes, *[active] * 4, now=now, used=used)
    assert busy(choice) == pytest.approx(100.0 * (1.0 - (1.0 + active) ** -power), 1e-2)


def test_requests_of_ours_that_only_wait_keep_nobody_busy() -> None:
    """Ten wait on each for long, and backends tell that none of them runs."""
    nodes, choice, now = fake_nodes(4), picker(), NOW
    for node in nodes:
        begin(node, 10)
    for _ in range(100):
        now += 0.1
        choice.pick(nodes, now)
        for node in nodes:
            begin(node)
            finish(node, LoadReport(0.1, 10.0, active=10, runnable=0), now)
    assert busy(choice) < 10.0


def test_absurd_counts_of_a_moment_are_forgotten_in_a_few() -> None:
    """They would have idle backends look busy for half a minute: no turns taken."""
    nodes, choice, now = fake_nodes(4), picker(), NOW
    for step in range(100):
        now += 0.1
        choice.pick(nodes, now)
        absurd = 4_000_000_000 if 50 <= step < 54 else 0
        told(nodes, absurd, 0, 0, 0, now=now)
    assert busy(choice) < 10.0, "five seconds later"


def test_a_recent_error_counts_as_a_request() -> None:
    a, b = nodes = fake_nodes(2)
    begin(a, 3)
    for _ in range(3):
        a.load.finish(Outcome(Verdict.FAILED, 0.001), NOW)
    begin(b, 1)
    choice = picker()
    assert choice.pick(nodes, NOW) is b
    assert choice.pick(nodes, NOW + 60.0) is a


@pytest.mark.parametrize("count", [3, 10])
def test_who_refuses_from_the_start_gets_little_of_the_first_calls(count: int) -> None:
    """It got 11 of 40: turns counted by a mean that was nothing, and beat errors."""
    nodes, choice, now, refused = fake_nodes(count), picker(), NOW, 0
    for _ in range(40):
        now += 0.004
        node = choice.pick(nodes, now)
        begin(node)
        if node is nodes[0]:
            refused += 1
            node.load.finish(Outcome(Verdict.REJECTED, 0.001), now)
        else:
            finish(node, now=now)
    assert refused <= 3


def tell_old(
    choice: WeightedLeastLoaded, nodes: tuple[FakeNode, ...], *active: int
) -> None:
    """Each answers two of six, and tells how many it had when these were none."""
    choice.pick(nodes, NOW)
    for node in nodes:
        begin(node, 6)
    for now in (NOW, NOW + 0.5):
        for node, number in zip(nodes, active, strict=True):
            finish(node, LoadReport(0.5, 100.0, active=number), now)
        choice.pick(nodes, now)
    for node in nodes:
        for _ in range(4):
            finish(node, now=NOW + 0.5)


def test_a_count_without_our_own_requests_is_old_and_so_are_the_next_ones() -> None:
    nodes, choice = fake_nodes(3), picker()
    tell_old(choice, nodes, 0, 8, 8)
    told(nodes, 0, 30, 30, now=NOW + 1.0)
    choice.pick(nodes, NOW + 1.0)
    picks = [choice.pick(nodes, NOW + 1.003) for _ in range(3)]
    assert picks.count(nodes[0]) < 3


def test_when_two_tell_old_counts_nobody_is_believed() -> None:
    nodes, choice = fake_nodes(3), picker()
    tell_old(choice, nodes, 0, 0, 8)
    told(nodes, 3, 3, 0, now=NOW + 1.0)
    picks = [choice.pick(nodes, NOW + 1.0) for _ in range(9)]
    assert max(map(picks.count, nodes)) <= 4
    told(nodes, 3, 3, 0, now=NOW + 100.0)
    assert choice.pick(nodes, NOW + 100.0) is nodes[2]


def test_old_counts_still_tell_how_busy_all_are() -> None:
    """In the mean: without it p99 was 127 ms in reports_late, not 104."""
    nodes, choice = fake_nodes(3), picker()
    for second in range(-20, 20):
        if second == 0:
            tell_old(choice, nodes, 0, 0, 8)
            continue
        choice.pick(nodes, NOW + second)
        told(nodes, 9, 9, 9, now=NOW + second + 0.1)
        choice.pick(nodes, NOW + second + 0.1)
    assert all(each.others is None for each in choice._known.values())
    assert "99% busy" in repr(choice)


def test_a_count_that_is_too_low_once_is_believed() -> None:
    """The requests that it lacks were on their way."""
    nodes, choice = fake_nodes(3), picker()
    choice.pick(nodes, NOW)
    for node, number in zip(nodes, (4, 0, 4), strict=True):
        begin(node, 6)
        finish(node, LoadReport(0.5, 100.0, active=number))
    assert choice.pick(nodes, NOW) is nodes[1]


def test_requests_on_their_way_do_not_make_a_count_old() -> None:
    nodes, choice = fake_nodes(3), picker()
    choice.pick(nodes, NOW)
    for node, number in zip(nodes, (4, 0, 4), strict=True):
        begin(node, 4)
        finish(node, LoadReport(utilization=0.5, qps=100.0, active=number))
    assert choice.pick(nodes, NOW) is nodes[1]


def test_requests_that_last_are_spread_by_weight() -> None:
    """Of 300 in flight each has its share: 3 utilizations, bound in reach."""
    nodes, choice = fake_nodes(3), picker(gain=1.0)
    for node, utilization in zip(nodes, (0.2, 0.4, 0.4), strict=True):
        node.load.observe(LoadReport(utilization=utilization, qps=1.0), NOW)
    for _ in range(300):
        begin(choice.pick(nodes, NOW))
    weights = choice.weights(nodes, NOW)
    assert weights[0] == pytest.approx(2 * weights[1])
    assert [node.load.in_flight for node in nodes] == [150, 75, 75]


def test_a_restarted_backend_is_not_judged_by_its_old_reports() -> None:
    nodes, choice = fake_nodes(2), picker()
    choice.pick(nodes, NOW)
    told(nodes, 50, 5)
    assert choice.pick(nodes, NOW) is nodes[1]
    nodes[0].load.leave_ready()
    nodes[0].load.enter_ready(NOW)
    picks = [choice.pick(nodes, NOW) for _ in range(10)]
    assert picks.count(nodes[0]) >= 4


def busy_after(choice: WeightedLeastLoaded, told_until: float) -> float:
    """How busy it takes all to be 20 s later, one request each tenth of a second and
    nothing from health checks. As told, each backend has nine others' requests."""
    nodes = fake_nodes(3)
    for tenth in range(1, 600):
        now = NOW + tenth / 10
        node = choice.pick(nodes, now)
        begin(node)
        report = LoadReport(utilization=0.5, qps=100.0, active=9)
        finish(node, report if now < told_until else None, now)
    return busy(choice)


def test_what_was_told_of_others_is_forgotten_when_no_more_is_told() -> None:
    """Once it stayed: for ever busy, it took no turns, and the fast got it all."""
    assert busy_after(picker(), told_until=NOW + 100.0) >= 98.0
    assert busy_after(picker(), told_until=NOW + 40.0) == 0.0


def test_a_report_is_missed_when_answers_come_without() -> None:
    """At its age alone only when it is old: no request, no answer."""
    nodes, choice = fake_nodes(2), picker()
    choice.pick(nodes, NOW)
    for second in range(5):
        told(nodes, 9, 9, now=NOW + second)
        choice.pick(nodes, NOW + second)
    a, b = (choice._known[node.load] for node in nodes)
    for _ in range(6):
        begin(nodes[0])
        finish(nodes[0], now=NOW + 8.0)
        choice.pick(nodes, NOW + 8.0)
    choice.pick(nodes, NOW + 8.5)
    assert (a.others, b.others) == (None, 9)
    choice.pick(nodes, NOW + 18.0)
    assert b.others == 9
    choice.pick(nodes, NOW + 20.0)
    assert b.others is None
    told(nodes[:1], 7, now=NOW + 21.0)
    choice.pick(nodes, NOW + 21.0)
    assert a.others == 7


def answer_without_report(
    choice: WeightedLeastLoaded, nodes: tuple[FakeNode, ...], now: float, count: int
) -> None:
    for _ in range(count):
        begin(nodes[0])
        finish(nodes[0], now=now)
    choice.pick(nodes, now)


def test_answers_that_follow_a_report_soon_need_not_bring_another() -> None:
    """Three mean gaps are waited for, however many answers there are."""
    nodes, choice = fake_nodes(1), picker()
    for second in range(10):
        told(nodes, 9, now=NOW + second)
        choice.pick(nodes, NOW + second)
    last = NOW + 9.0
    candidate = choice._known[nodes[0].load]
    for tenth in range(1, 30):
        answer_without_report(choice, nodes, last + tenth / 10, 10)
        assert candidate.others == 9, f"after {tenth / 10} s"
    answer_without_report(choice, nodes, last + 3.3, 10)
    assert candidate.others is None


def test_who_reports_seldom_is_given_ten_times_as_long() -> None:
    """By age alone: nobody calls it."""
    nodes, choice = fake_nodes(1), picker()
    for fifth in range(10):
        told(nodes, 9, now=NOW + 5.0 * fifth)
        choice.pick(nodes, NOW + 5.0 * fifth)
    last = NOW + 45.0
    candidate = choice._known[nodes[0].load]
    for age, others in ((16.0, 9), (49.0, 9), (51.0, None)):
        choice.pick(nodes, last + age)
        assert candidate.others == others, f"after {age} s"


def test_whose_reports_are_missed_has_no_say_in_the_weights_of_others() -> None:
    """Most told 0.2 of an idle hour and then fell silent: two who go on telling, now
    0.8, had their weights driven to the bound."""
    nodes, choice, now = fake_nodes(5), picker(), NOW
    for second in range(60):
        now = NOW + second
        choice.pick(nodes, now)
        for number, node in enumerate(nodes):
            begin(node, 10)
            tells = number < 2 or second < 5
            used = 0.2 if second < 5 else 0.8
            for _ in range(10):
                finish(node, LoadReport(used, 100.0) if tells else None, now)
    # They moved until the silence of the others was noticed, and no further.
    assert min(choice.weights(nodes, now)) > 0.6


@pytest.mark.parametrize("verdict", [Verdict.ABANDONED, Verdict.FAILED])
def test_who_does_not_answer_withholds_no_report(verdict: Verdict) -> None:
    """Of calls given up, and of those that timed out, none could come."""
    nodes, choice = fake_nodes(1), picker()
    for second in range(5):
        told(nodes, 9, now=NOW + second)
        choice.pick(nodes, NOW + second)
    for tenth in range(50, 100):
        begin(nodes[0])
        nodes[0].load.finish(Outcome(verdict, 0.02), NOW + tenth / 10)
        choice.pick(nodes, NOW + tenth / 10)
    assert choice._known[nodes[0].load].others == 9


def test_what_health_checks_told_while_nobody_called_is_not_missed() -> None:
    """It waits to be looked at with the next pick: that had others' weights stay."""
    nodes, choice = fake_nodes(2), picker()
    for tenth in range(100):
        told(nodes, 1, 1, now=NOW + tenth / 10)
        choice.pick(nodes, NOW + tenth / 10)
    choice.pick(nodes, NOW + 10.5)
    assert choice.weights(nodes, NOW + 10.5) == [1.0, 1.0]
    for second in range(15, 70, 5):
        for node, used in zip(nodes, (0.9, 0.3), strict=True):
            node.load.observe(LoadReport(used, 100.0, active=1), NOW + second)
    choice.pick(nodes, NOW + 66.0)
    busy, idle = choice.weights(nodes, NOW + 66.0)
    assert busy < 1.0 < idle


def test_a_lost_report_now_and_then_is_not_missed() -> None:
    nodes, choice = fake_nodes(1), picker()
    known = set()
    for tenth in range(600):
        now = NOW + tenth / 10
        choice.pick(nodes, now)
        if tenth > 0:
            known.add(choice._known[nodes[0].load].others)
        begin(nodes[0])
        report = LoadReport(utilization=0.5, qps=100.0, active=9)
        finish(nodes[0], report if tenth % 4 == 0 else None, now)
    assert known == {9}


def test_a_newcomer_does_not_get_all_that_the_others_had() -> None:
    nodes, choice = fake_nodes(4), picker()
    for i in range(300):
        choice.pick(nodes[:3], NOW + i * 0.01)
    picks = [choice.pick(nodes, NOW + 3.0 + i * 0.01) for i in range(40)]
    assert 8 <= picks.count(nodes[3]) <= 12


def test_turns_that_were_missed_long_ago_are_not_made_up_for() -> None:
    a, b = nodes = fake_nodes(2)
    choice = picker()
    begin(b, 50)
    for i in range(200):
        assert choice.pick(nodes, NOW + i * 0.01) is a
    for _ in range(50):
        finish(b)
    picks = [choice.pick(nodes, NOW + 60.0) for _ in range(20)]
    assert picks.count(b) == 10


def test_members_that_return_are_known_again() -> None:
    """A backend that is full leaves `ready` and returns within milliseconds."""
    nodes, choice = fake_nodes(3), picker()
    begin(nodes[0], 5)
    for i in range(30):
        node = choice.pick(nodes if i % 2 else nodes[1:], NOW)
        assert node in nodes[1:]
        begin(node)
        finish(node)


def test_a_starved_backend_is_tried_now_and_then() -> None:
    """Else nobody would see it recover: here it claims to be swamped, for ever."""
    nodes, choice = fake_nodes(3), picker()
    tries = 0
    for i in range(6000):
        now = NOW + i * 0.01
        nodes[2].load.observe(LoadReport(0.5, 10.0, active=1000), now)
        node = choice.pick(nodes, now)
        begin(node)
        if node is nodes[2]:
            tries += 1
            finish(node, LoadReport(0.5, 10.0, active=1000), now)
        else:
            finish(node, LoadReport(0.5, 10.0, active=0), now)
    # A hundredth of its fair share of 2000, and at most one for each step.
    assert 10 <= tries <= 60


def test_a_report_from_the_future_does_no_harm() -> None:
    nodes, choice = fake_nodes(2), picker()
    choice.pick(nodes, NOW)
    told(nodes, 5, 5, now=NOW + 1e6)
    assert choice.pick(nodes, NOW) in nodes


def test_weights_are_equal_until_something_is_known() -> None:
    assert picker().weights(fake_nodes(3), NOW) == [1.0, 1.0, 1.0]


# Asking


def sparse(**options: float) -> tuple[WeightedLeastLoaded, tuple[FakeNode, ...]]:
    """Requests take 0.4 s, others have three on each, and all told so at -0.9."""
    nodes, choice = fake_nodes(10), picker(**options)
    for second in range(-9, 0):
        choice.pick(nodes, NOW + second)
        for node in nodes:
            begin(node)
            report = LoadReport(utilization=0.5, qps=100.0, active=3)
            node.load.finish(Outcome(Verdict.SERVED, 0.4, report), NOW + second + 0.1)
        choice.pick(nodes, NOW + second + 0.2)
    choice.pick(nodes, NOW - 0.5)
    return choice, nodes


def test_where_answers_are_old_the_next_in_line_is_asked() -> None:
    choice, nodes = sparse()
    choice.probes.clear()
    choice.pick(nodes, NOW + 1.0)
    asked = [*choice.probes]
    assert len(asked) == 1
    assert choice.pick(nodes, NOW + 1.001) is asked[0]


def test_who_was_heard_of_is_not_asked() -> None:
    choice, nodes = sparse()
    choice.probes.clear()
    choice.pick(nodes, NOW - 0.25)  # 1.6 mean latencies
    assert choice.probes == []


def test_what_is_asked_is_limited_by_time() -> None:
    choice, nodes = sparse()
    choice.probes.clear()
    for i in range(300):
        choice.pick(nodes, NOW + 1.0 + i * 0.01)
    assert 20 <= len(choice.probes) <= 32  # 10 a second, and two that were saved up
    assert sparse(probe_rate=0.0)[0].probes == []


# Slow start


def newcomer(
    count: int, seed: int = 1
) -> tuple[WeightedLeastLoaded, tuple[FakeNode, ...]]:
    """A picker that knows all but the last node, which is ready from `NOW` on."""
    nodes, choice = fake_nodes(count), WeightedLeastLoaded(Random(seed))
    for i in range(100):
        choice.pick(nodes[:-1], NOW - 1.0 + i * 0.01)
    nodes[-1].load.enter_ready(NOW)
    return choice, nodes


def pick_often(
    choice: WeightedLeastLoaded, nodes: tuple[FakeNode, ...], now: float, count: int
) -> list[FakeNode]:
    """Every hundredth of a second; each request has ended by the next."""
    picks = []
    for i in range(count):
        picks.append(choice.pick(nodes, now + i * 0.01))
        begin(picks[-1])
        finish(picks[-1], now=now + i * 0.01)
    return picks


def test_a_newcomer_that_is_busier_than_the_others_gets_nothing() -> None:
    """Its share is what it may have: a cold backend does not finish even that."""
    choice, nodes = newcomer(3)
    begin(nodes[-1], 3)
    assert nodes[-1] not in pick_often(choice, nodes, NOW, 300)
    for _ in range(3):
        finish(nodes[-1], now=NOW + 3.0)
    assert nodes[-1] in pick_often(choice, nodes, NOW + 3.0, 30)


def test_clients_with_few_requests_do_not_all_wait_for_their_first_credit() -> None:
    """Of 40 clients each has a tenth of a share of eight picks: 0.25, none alone."""
    firsts = 0
    for seed in range(40):
        choice, nodes = newcomer(4, seed)
        firsts += pick_often(choice, nodes, NOW, 8).count(nodes[-1])
    assert 4 <= firsts <= 20


def test_credit_is_not_saved_up() -> None:
    choice, nodes = newcomer(2)
    begin(nodes[-1], 3)
    pick_often(choice, nodes, NOW, 900)
    for _ in range(3):
        finish(nodes[-1], now=NOW + 9.0)
    burst = pick_often(choice, nodes, NOW + 9.0, 20)
    assert 8 <= burst.count(nodes[-1]) <= 11


def test_a_newcomer_is_known_again_when_others_come_and_go() -> None:
    """Full backends do, within milliseconds; the credit stays."""
    choice, nodes = newcomer(4)
    picks = []
    for i in range(900):
        ready = nodes[1:] if i % 2 else nodes
        picks += pick_often(choice, ready, NOW + i * 0.01, 1)
    share = picks.count(nodes[-1]) / picks.count(nodes[-2])
    assert share == pytest.approx(0.1 + 0.9 * 0.45, abs=0.1)  # half way, or nearly


def test_a_low_utilization_on_the_ramp_is_not_made_up_for() -> None:
    """Else the weight would be at its bound when the ramp ends; reports lag by 2 s."""
    choice, nodes = newcomer(3)
    for second in range(16):
        now = NOW + second
        old, _, new = choice.weights(nodes, now - 2.0)
        for node in nodes:
            used = 0.5 * new / old if node is nodes[-1] else 0.5
            node.load.observe(LoadReport(utilization=used, qps=100.0), now)
        choice.pick(nodes, now)
    assert choice.weights(nodes, NOW + 16.0) == pytest.approx([1.0, 1.0, 1.0])
