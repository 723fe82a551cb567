"""Consistent hashing with bounded load: who keeps a key, and when it goes elsewhere."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from lbclient.core.call_hints import CallHints
from lbclient.core.errors import ConfigError
from lbclient.core.model import Endpoint, LoadReport, Outcome, Verdict
from lbclient.core.routing.key_hash import backend_hash, hash64, order
from lbclient.pickers import ConsistentHashing
from lbclient.pickers.consistent_hashing import FORGET_AFTER, MOST_ORDERS
from lbclient.pickers.key_homes import (
    level,
    requests_bound,
    utilization_bound,
)
from lbclient.testing import FakeNode, fake_nodes

PATH = "/test.Keys/Get"


def call(*keys: str, tried: tuple[FakeNode, ...] = ()) -> CallHints:
    return CallHints(PATH, keys, tried=tried)


def report(
    nodes: tuple[FakeNode, ...],
    used: dict[FakeNode, float],
    now: float,
    active: int = 3,
) -> None:
    for node in nodes:
        told = LoadReport(used.get(node, 0.5), qps=100.0, active=active)
        node.load.observe(told, now)


class Fleet:
    """Ten backends that report half of their capacity in use, but for `used`."""

    def __init__(self, count: int = 10, **options: float) -> None:
        self.nodes = fake_nodes(count)
        self.picker = ConsistentHashing(Random(7), **options)
        self.used: dict[FakeNode, float] = {}
        self.active: dict[FakeNode, int] = {}
        self.now = 100.0

    def pick(self, *keys: str, tried: tuple[FakeNode, ...] = ()) -> FakeNode:
        return self.picker.pick_for(call(*keys, tried=tried), self.nodes, self.now)

    def live(self, seconds: float) -> None:
        """Reports and picks go on."""
        for _ in range(int(seconds * 10)):
            self.now += 0.1
            for node in self.nodes:
                used, active = self.used.get(node, 0.5), self.active.get(node, 3)
                node.load.observe(LoadReport(used, qps=9.0, active=active), self.now)
            self.pick("any")

    def home(self, key: str) -> FakeNode:
        hashes = [backend_hash(node.endpoint) for node in self.nodes]
        return self.nodes[order(hash64(key), hashes, [1.0] * len(hashes))[0]]

    def share(self, key: str, picks: int = 400) -> float:
        """Of the picks for a key, those that went to its first choice."""
        home = self.home(key)
        return sum(self.pick(key) is home for _ in range(picks)) / picks


OTHERS = [Endpoint(f"g{number}:1", task=number) for number in range(3)]


def four_workers(port: int) -> tuple[FakeNode, ...]:
    """Of one task, at ports from this one on."""
    return tuple(
        FakeNode(Endpoint(f"h:{each}", 0.25, task=7, task_weight=1.0))
        for each in range(port, port + 4)
    )


def firsts(
    picker: ConsistentHashing, nodes: tuple[FakeNode, ...], now: float
) -> list[FakeNode]:
    """Who is picked for each of 2,000 keys."""
    return [picker.pick_for(call(f"k{n}"), nodes, now) for n in range(2000)]


def picked(
    picker: ConsistentHashing, nodes: tuple[FakeNode, ...], now: float
) -> Counter[FakeNode]:
    return Counter(firsts(picker, nodes, now))


def test_a_key_has_one_backend_and_keys_are_spread() -> None:
    fleet = Fleet()
    picks = {f"k{n}": {fleet.pick(f"k{n}") for _ in range(3)} for n in range(200)}
    assert {len(each) for each in picks.values()} == {1}
    assert len({node for each in picks.values() for node in each}) == 10
    assert fleet.picker.keyed_picks == fleet.picker.first_choices == 600


def test_clients_agree_without_a_word() -> None:
    """Whatever their chance, and in whichever order they know the backends."""
    nodes = fake_nodes(10)
    one, other = ConsistentHashing(Random(1)), ConsistentHashing(Random(2))
    for number in range(100):
        key = call(f"k{number}")
        assert one.pick_for(key, nodes, 1.0) is other.pick_for(key, nodes[::-1], 9.0)


def test_clients_agree_on_the_workers_of_a_task() -> None:
    """Which have one task number, and so one hash; each of them has its keys."""
    ends = [Endpoint("h:1", task=7), Endpoint("h:2", task=7), Endpoint("g:1", task=8)]
    nodes = tuple(map(FakeNode, ends))
    one, other = ConsistentHashing(Random(1)), ConsistentHashing(Random(1))
    picks = Counter[FakeNode]()
    for number in range(300):
        key = call(f"k{number}")
        picked = one.pick_for(key, nodes, 1.0)
        assert other.pick_for(key, nodes[::-1], 1.0) is picked
        picks[picked] += 1
    assert min(picks.values()) > 50  # of 75 and 150; deviation 7.5


def test_a_task_of_four_workers_gets_as_many_keys_as_one_without() -> None:
    nodes = (*four_workers(1), *map(FakeNode, OTHERS))
    picks = picked(ConsistentHashing(Random(1)), nodes, 1.0)
    # 500 keys for each task; deviations 19, and 11 for the 125 of a worker.
    workers = [picks[node] for node in nodes[:4]]
    assert 400 < sum(workers) < 600
    assert 70 < min(workers) <= max(workers) < 180
    assert all(400 < picks[node] < 600 for node in nodes[4:])


@pytest.mark.parametrize("address", ["a:1", "b:1"])
def test_a_task_that_is_replaced_has_the_same_keys(address: str) -> None:
    """Its node is another one, its hash is not, whichever address it comes back at."""
    task = 7 if address != "a:1" else None
    others = tuple(map(FakeNode, OTHERS))
    before = FakeNode(Endpoint("a:1", task=task))
    after = FakeNode(Endpoint(address, task=task))
    picker = ConsistentHashing(Random(1), slow_start=0.0)
    first = firsts(picker, (*others, before), 1.0)
    assert before not in firsts(picker, others, 2.0)
    for now in (3.0, 2.0 + FORGET_AFTER, 4.0 + 2 * FORGET_AFTER):
        again = firsts(picker, (*others, after), now)
        assert again == [after if node is before else node for node in first]


def test_a_task_whose_workers_are_replaced_one_by_one_has_the_same_keys() -> None:
    others = tuple(map(FakeNode, OTHERS))
    before, after = four_workers(1), four_workers(11)
    picker = ConsistentHashing(Random(1), slow_start=0.0)
    first = firsts(picker, (*others, *before), 1.0)
    for count in range(5):
        now = 2.0 + count
        here = (*others, *after[:count], *before[count:])
        new = firsts(picker, here, now)
        assert [node in others for node in new] == [node in others for node in first]
    counts = Counter(new)
    assert all(70 < counts[node] < 180 for node in after)  # as above


def test_a_task_has_its_keys_while_some_of_its_workers_are_away() -> None:
    others = tuple(map(FakeNode, OTHERS))
    workers = four_workers(1)
    picker = ConsistentHashing(Random(1), slow_start=0.0)
    first = firsts(picker, (*others, *workers), 1.0)
    for now in (2.0, 3.0 + FORGET_AFTER):
        new = firsts(picker, (*others, *workers[1:]), now)
        assert [node in others for node in new] == [node in others for node in first]


def test_workers_without_a_task_number_have_their_parts_of_the_keys() -> None:
    """Each is a backend of its own, with a hash of its own."""
    ends = [Endpoint(f"h:{port}", 0.25, task_weight=1.0) for port in range(1, 5)]
    nodes = (*map(FakeNode, ends), *map(FakeNode, OTHERS))
    picks = picked(ConsistentHashing(Random(1)), nodes, 1.0)
    assert 400 < sum(picks[node] for node in nodes[:4]) < 600


def test_of_several_keys_the_first_counts() -> None:
    fleet = Fleet()
    assert fleet.pick("k1", "k2") is fleet.pick("k1", "k3") is fleet.home("k1")


def test_calls_without_a_key_go_to_the_least_loaded() -> None:
    fleet = Fleet(4)
    counts = Counter(
        fleet.picker.pick_for(call(), fleet.nodes, 100.0) for _ in range(40)
    )
    assert set(counts.values()) == {10}
    assert fleet.picker.keyed_picks == 0


def test_a_backend_at_the_bound_keeps_what_it_can() -> None:
    """Integral control: its utilization here follows the share that it keeps."""
    fleet = Fleet()
    hot = fleet.home("hot")
    share = 1.0
    for _ in range(60):
        fleet.used[hot] = min(1.0, share)
        fleet.live(0.5)
        share = fleet.share("hot", 40)
    mean = (0.5 * 9 + fleet.used[hot]) / 10
    assert fleet.used[hot] == pytest.approx(mean * 1.2125, abs=0.12)
    assert "keeps" in repr(fleet.picker)


def test_the_hottest_keys_make_room_for_all_others() -> None:
    fleet = Fleet()
    hot = fleet.home("hot")
    others = [k for k in map(str, range(200)) if fleet.home(k) is hot][:8]
    calls = [*["hot"] * 12, *others]
    stayed: Counter[str] = Counter()
    for _ in range(300):
        there = [key for key in calls if fleet.pick(key) is hot]
        stayed.update(there)
        fleet.used[hot] = 0.9 * len(there) / len(calls)
        fleet.live(0.5)
    assert stayed["hot"] < 0.75 * 12 * 300
    assert min(stayed[key] for key in others) > 0.95 * 300


def test_what_leaves_goes_to_one_second_choice() -> None:
    fleet = Fleet()
    hot = fleet.home("hot")
    fleet.used[hot] = 1.0
    fleet.live(20.0)
    went = {fleet.pick("hot") for _ in range(200)}
    without = tuple(node for node in fleet.nodes if node is not hot)
    second = ConsistentHashing(Random(1)).pick_for(call("hot"), without, 1.0)
    assert went == {hot, second}


def test_a_backend_whose_load_falls_gets_its_calls_back() -> None:
    fleet = Fleet()
    fleet.used[fleet.home("hot")] = 1.0
    fleet.live(20.0)
    assert fleet.share("hot") < 0.5
    fleet.used.clear()
    fleet.live(60.0)
    assert fleet.share("hot") == 1.0


def test_a_queue_sends_calls_on_before_utilization_says_so() -> None:
    """By requests of all clients: none of them is ours."""
    fleet = Fleet()
    fleet.live(2.0)
    fleet.active[fleet.home("hot")] = 60
    fleet.live(0.3)
    assert fleet.share("hot") == 0.0
    fleet.active.clear()
    fleet.live(5.0)
    assert fleet.share("hot") == 1.0


def test_our_own_calls_bound_backends_that_report_nothing() -> None:
    fleet = Fleet()
    home = fleet.home("hot")
    sent = 0
    while fleet.pick("hot") is home and sent < 1000:
        home.load.begin()
        sent += 1
    assert sent == pytest.approx(requests_bound(1.0, 1.25, 1.0), abs=1.0)


def test_a_backend_that_fails_loses_calls_and_not_if_all_do() -> None:
    fleet = Fleet()
    home = fleet.home("hot")

    def fail(node: FakeNode) -> None:
        for _ in range(30):
            node.load.begin()
            node.load.finish(Outcome(Verdict.FAILED, 0.01), fleet.now)

    fail(home)
    assert fleet.pick("hot") is not home
    for node in fleet.nodes:
        if node is not home:
            fail(node)
    fleet.now += 0.3
    assert fleet.pick("hot") is home


def test_a_key_returns_with_its_backend() -> None:
    fleet = Fleet()
    home, nodes = fleet.home("k"), fleet.nodes
    fleet.nodes = tuple(node for node in nodes if node is not home)
    assert fleet.pick("k") is not home
    fleet.nodes = nodes
    assert fleet.pick("k") is home


@pytest.mark.parametrize(("away", "keeps_all"), [(0.5, False), (1.5, True)])
def test_a_backend_that_was_away_keeps_its_calls_again(
    away: float, keeps_all: bool
) -> None:
    """It lost them for the load that it had before; a short break changes nothing."""
    fleet = Fleet()
    hot, nodes = fleet.home("hot"), fleet.nodes
    fleet.used[hot] = 1.0
    fleet.live(20.0)
    assert fleet.share("hot") < 0.5
    fleet.nodes = tuple(node for node in nodes if node is not hot)
    fleet.live(away)
    fleet.nodes = nodes
    assert (fleet.share("hot") == 1.0) is keeps_all


def test_keys_come_one_by_one_to_a_backend_that_starts_slowly() -> None:
    """Each moves once, and clients agree which ones have moved."""
    fleet = Fleet(slow_start=10.0)
    new = fleet.nodes[0]
    keys = [k for k in map(str, range(1000)) if fleet.home(k) is new]
    new.load.enter_ready(fleet.now)
    moved: set[str] = set()
    shares = []
    for _ in range(12):
        fleet.live(1.0)
        there = {key for key in keys if fleet.pick(key) is new}
        assert moved <= there
        moved = there
        shares.append(len(there) / len(keys))
    assert shares[0] < 0.4
    assert shares[4] == pytest.approx(0.55, abs=0.15)
    assert shares[-1] == 1.0


def test_a_later_attempt_goes_to_the_next_choice() -> None:
    fleet = Fleet()
    tried: tuple[FakeNode, ...] = ()
    for _ in range(10):
        tried = (*tried, fleet.pick("k", tried=tried))
    assert len(set(tried)) == 10
    assert fleet.pick("k", tried=tried) in fleet.nodes


def test_a_pick_that_is_asked_for_again_counts_once() -> None:
    fleet = Fleet()
    again, home = call("k"), fleet.home("k")
    others = tuple(node for node in fleet.nodes if node is not home)
    fleet.picker.pick_for(again, fleet.nodes, fleet.now)
    fleet.picker.pick_for(again, others, fleet.now)
    assert fleet.picker.keyed_picks == fleet.picker.first_choices == 1


def test_weights_of_the_resolver_count() -> None:
    fleet = Fleet(2)
    for node, weight in zip(fleet.nodes, (1.0, 3.0), strict=True):
        node.endpoint = replace(node.endpoint, weight=weight)
    counts = Counter(fleet.pick(str(n)) for n in range(2000))
    assert counts[fleet.nodes[1]] == pytest.approx(1500, abs=4 * 20)
    for node in fleet.nodes:
        node.endpoint = replace(node.endpoint, weight=1.0)
    fleet.now += 1.0
    counts = Counter(fleet.pick(str(n)) for n in range(2000))
    assert counts[fleet.nodes[1]] == pytest.approx(1000, abs=4 * 23)


def test_it_keeps_no_more_than_it_may() -> None:
    fleet = Fleet(3)
    for number in range(3 * MOST_ORDERS):
        fleet.pick(str(number))
    assert len(fleet.picker._orders) == MOST_ORDERS
    fleet.nodes = fleet.nodes[:1]
    fleet.pick("k")
    fleet.now += FORGET_AFTER + 1.0
    fleet.pick("k")
    assert [*fleet.picker._homes] == [fleet.nodes[0]]


def test_it_keeps_the_orders_of_keys_that_are_in_use() -> None:
    fleet = Fleet(3)
    fleet.pick("hot")
    kept = fleet.picker._orders["hot"]
    for number in range(2 * MOST_ORDERS):
        fleet.pick(f"once-{number}")
        fleet.pick("hot")
    assert fleet.picker._orders["hot"] is kept


def test_orders_outlive_a_resolver_that_says_the_same_again() -> None:
    fleet = Fleet(3)
    fleet.pick("k")
    kept = fleet.picker._orders["k"]
    for node in fleet.nodes:
        node.endpoint = replace(node.endpoint)
    fleet.now += 1.0
    fleet.pick("k")
    assert fleet.picker._orders["k"] is kept


@pytest.mark.parametrize("factor", [1.0, 11.0, "much"])
def test_a_factor_that_is_none_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match=r"balance_factor = .*: want a number, 1.05"):
        ConsistentHashing(Random(1), balance_factor=factor)


def test_bounds_leave_room_below_full() -> None:
    """1.25 times a mean of 0.85 would be none; and an idle fleet keeps its keys."""
    assert utilization_bound(0.7, 1.25) == pytest.approx(0.84875)
    assert utilization_bound(0.85, 1.25) == pytest.approx(0.925)
    assert utilization_bound(0.99, 1.25) < 1.0
    assert utilization_bound(0.01, 1.25) == 0.2


def test_the_level_leaves_the_share_that_is_kept() -> None:
    rng = Random(1)
    for _ in range(100):
        counts = [rng.randrange(1, 50) for _ in range(rng.randrange(1, 20))]
        kept = rng.random()
        at = level(counts, kept)
        assert sum(min(count, at) for count in counts) == pytest.approx(
            kept * sum(counts)
        )


def test_a_report_that_is_too_old_counts_as_none() -> None:
    fleet = Fleet()
    fleet.used[fleet.home("hot")] = 1.0
    fleet.live(20.0)
    assert fleet.share("hot") < 0.5
    for _ in range(400):  # nobody reports any more
        fleet.now += 1.0
        fleet.pick("any")
    assert fleet.share("hot") == 1.0


def test_a_key_wants_its_backend_beyond_the_subset_until_it_is_there() -> None:
    members = tuple(Endpoint(f"10.0.0.{i}:1") for i in range(50))
    nodes = tuple(FakeNode(one) for one in members)
    picker = ConsistentHashing(Random(1))
    wanted: list[Endpoint] = []
    picker.want = wanted.append
    picker.know(members)
    subset = nodes[:5]
    hashes = [backend_hash(one) for one in members]
    at_home = 0
    for number in range(100):
        key = f"key-{number}"
        first = members[order(hash64(key), hashes, [1.0] * 50)[0]]
        wanted.clear()
        node = picker.pick_for(call(key), subset, 1.0)
        at_home += node.endpoint == first
        assert wanted == ([] if first in members[:5] else [first])
        wanted.clear()
        whole = (*subset, nodes[members.index(first)])
        if first not in members[:5]:
            assert picker.pick_for(call(key), whole, 2.0).endpoint == first
            assert not wanted
    assert picker.keyed_picks == 200 - at_home
    assert picker.first_choices < picker.keyed_picks
    picker.know(())
    picker.pick_for(call("key-1"), subset, 3.0)
    assert not wanted


def test_a_first_choice_that_is_away_is_wanted_again() -> None:
    nodes = fake_nodes(5)
    picker = ConsistentHashing(Random(1))
    wanted: list[Endpoint] = []
    picker.want = wanted.append
    picker.know(tuple(node.endpoint for node in nodes))
    home = picker.pick_for(call("hot"), nodes, 1.0)
    assert not wanted
    others = tuple(node for node in nodes if node is not home)
    picker.pick_for(call("hot"), others, 2.0)
    assert wanted == [home.endpoint]


def test_whom_keys_want_takes_bounded_memory() -> None:
    picker = ConsistentHashing(Random(1))
    picker.know(tuple(Endpoint(f"10.0.0.{i}:1") for i in range(3)))
    nodes = fake_nodes(2)
    for number in range(5 * MOST_ORDERS):
        picker.pick_for(call(f"key-{number}"), nodes, 1.0)
    assert len(picker._firsts) <= 2 * MOST_ORDERS
