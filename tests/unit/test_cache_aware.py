"""Cache-aware routing: what is cached where, what a miss costs, and who is picked."""

from random import Random

import pytest

from lbclient.core.call_hints import CallHints
from lbclient.core.errors import ConfigError
from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.pickers import CacheAware, picker_factory
from lbclient.pickers.cache_memory import CacheMemory
from lbclient.pickers.miss_cost import MissCost
from lbclient.testing import FakeNode, fake_nodes

PATH = "/test.Keys/Get"
PRICE = 0.1  # seconds


class Fleet:
    """Backends that serve one call at a time, and remember all keys, or the last."""

    def __init__(self, count: int = 4, memory: int = 10**6, **options: float) -> None:
        self.nodes = fake_nodes(count)
        for node in self.nodes:
            node.load.enter_ready(0.0)
        self.picker = CacheAware(Random(7), **options)
        self.now = 100.0
        self.memory = memory
        self.cached: dict[FakeNode, list[str]] = {node: [] for node in self.nodes}

    def send(self, *keys: str, tried: tuple[FakeNode, ...] = ()) -> FakeNode:
        self.call = CallHints(PATH, keys, tried=tried)
        node = self.picker.pick_for(self.call, self.nodes, self.now)
        node.load.begin()
        return node

    def answer(self, node: FakeNode, call: CallHints, seconds: float) -> None:
        self.now += seconds
        node.load.finish(Outcome(Verdict.SERVED, seconds), self.now)
        self.picker.answered(call, node, seconds, self.now)

    def serve(self, *keys: str) -> FakeNode:
        """Sends a call to an idle fleet, and answers it when the keys are made."""
        node = self.send(*keys)
        cached = self.cached[node]
        missing = len(keys)
        for key in reversed(keys):
            if key not in cached:
                break
            missing -= 1
        for key in reversed(keys):
            if key in cached:
                cached.remove(key)
            cached.append(key)
        del cached[: -self.memory]
        self.answer(node, self.call, 0.02 + PRICE * missing)
        return node


def test_a_key_goes_where_it_was_cached() -> None:
    fleet = Fleet()
    first = {key: fleet.serve(key) for key in map(str, range(50))}
    assert len(set(first.values())) == 4
    assert {key: fleet.serve(key) for key in first} == first
    assert fleet.picker.expected_hits == pytest.approx(50, abs=5)
    assert fleet.picker.asked_keys == fleet.picker.keyed_picks == 100


def test_the_backend_with_more_of_the_keys_is_picked() -> None:
    fleet = Fleet()
    conversation = ["system"]
    home = None
    for turn in range(10):
        for other in range(5):
            fleet.serve(f"other-{turn}-{other}", "system")
        conversation.insert(0, f"turn {turn}")
        node = fleet.serve(*conversation)
        assert home is None or node is home
        home = node


def test_a_prefix_counts_up_to_its_first_key_that_is_missing() -> None:
    memory = CacheMemory()
    memory.note(("c", "b", "a"), 1, 3)
    memory.note(("b", "a"), 2, 2)
    memory.note(("z",), 3, 1)
    found, known = memory.find(("d", "c", "b", "a"))
    assert {number: one.once for number, one in found.items()} == {1: 3, 2: 2}
    assert known == 3
    found, known = memory.find(("c", "x", "a"))
    assert {number: one.once for number, one in found.items()} == {1: 1, 2: 1}
    assert known == 1
    assert memory.find(("new",)) == ({}, 0)


def test_a_queue_that_costs_more_than_the_misses_sends_a_call_elsewhere() -> None:
    fleet = Fleet(miss_cost=PRICE)
    home = fleet.serve("hot")
    calls = []
    while (node := fleet.send("hot")) is home:
        calls.append(fleet.call)
        assert len(calls) < 50
    # Of a call that misses nothing only the base waits: so many are less than a miss.
    assert len(calls) > 1
    assert node is not home
    for call in calls:
        fleet.answer(home, call, 0.02)
    fleet.answer(node, fleet.call, 0.12)
    fleet.now += 1.0
    assert fleet.send("hot") in (home, node)


def test_a_call_in_flight_that_is_answered_waits_no_more() -> None:
    """A stream goes on after its first message, and nobody waits for that."""
    fleet = Fleet(miss_cost=PRICE)
    home = fleet.serve("hot")
    for _ in range(100):
        assert fleet.send("hot") is home
        fleet.now += 0.02
        fleet.picker.answered(fleet.call, home, 0.02, fleet.now)
    assert home.load.in_flight == 100


def test_the_price_of_a_miss_is_learned() -> None:
    fleet = Fleet(count=1)
    rng = Random(3)
    for number in range(300):
        fleet.serve(*(f"{number}-{i}" for i in range(rng.randrange(1, 20))))
    assert fleet.picker.cost.price == pytest.approx(PRICE, rel=0.05)
    assert fleet.picker.cost.base == pytest.approx(0.02, abs=0.01)


def test_how_soon_backends_forget_is_learned() -> None:
    """They keep 30 keys, which nobody tells."""
    fleet = Fleet(count=1, memory=30)
    rng = Random(3)
    recent: list[str] = []
    for number in range(3000):
        key = str(number)
        if recent and rng.random() < 0.6:
            key = recent[-min(len(recent), 1 + int(2 ** (8 * rng.random())))]
        fleet.serve(key)
        recent.append(key)
    kept = fleet.picker.memory.kept
    assert min(kept[1:4]) > 0.8
    assert kept[7] < 0.3


def test_the_share_of_a_queue_is_learned_where_several_are_served_at_once() -> None:
    cost = MissCost()
    rng = Random(3)
    for _ in range(2000):
        missing, ahead = rng.randrange(20), rng.choice([0.0, 0.5, 2.0, 4.0])
        cost.learn(missing, ahead, 0.05 + 0.03 * missing + 0.25 * ahead)
    assert (cost.base, cost.price, cost.share) == pytest.approx(
        (0.05, 0.03, 0.25), rel=0.1
    )


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 5.0])
def test_calls_that_are_all_alike_teach_a_price_above_zero(seconds: float) -> None:
    cost = MissCost()
    for _ in range(100):
        cost.learn(1.0, 0.0, seconds)
    assert cost.price > 0.0
    assert 0.0 <= cost.share <= 2.0
    assert cost.service(1.0) == pytest.approx(seconds, abs=0.01)


def test_a_price_that_is_given_stays() -> None:
    fleet = Fleet(count=1, miss_cost=7.0)
    for number in range(100):
        fleet.serve(str(number))
    assert fleet.picker.cost.price == 7.0


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf"), True, "1"])
def test_a_price_that_cannot_be_is_refused(price: float) -> None:
    with pytest.raises(ConfigError, match="miss_cost"):
        CacheAware(Random(1), miss_cost=price)


def test_a_queue_that_is_reported_counts_and_a_missing_one_is_not_idle() -> None:
    fleet = Fleet(count=3, miss_cost=PRICE)
    full, empty, silent = fleet.nodes
    queue = "named_metrics.queue_length"
    for _ in range(40):  # as the mean is smoothed
        fleet.now += 0.3
        full.load.observe(LoadReport(active=20, metrics={queue: 16.0}), fleet.now)
        empty.load.observe(LoadReport(active=20, metrics={queue: 0.001}), fleet.now)
        fleet.send("any")
        fleet.picker.answered(fleet.call, fleet.nodes[0], None, fleet.now)
    went = [fleet.send(f"new {number}") for number in range(6)]
    assert went[0] is empty
    assert full not in went
    ahead = {
        home.node: fleet.picker._ahead(home, fleet.now)
        for home in fleet.picker._present
    }
    assert ahead[full] > ahead[silent] > 0.0


def test_reports_that_are_stale_count_as_missing() -> None:
    fleet = Fleet(count=2, miss_cost=PRICE)
    queue = "named_metrics.queue_length"
    idle, busy = fleet.nodes
    idle.load.observe(LoadReport(active=1, metrics={queue: 0.001}), fleet.now)
    fleet.now += 200.0
    for _ in range(40):
        fleet.now += 0.3
        busy.load.observe(LoadReport(active=9, metrics={queue: 8.0}), fleet.now)
        fleet.send("x")
        for node in fleet.nodes:
            fleet.picker.answered(fleet.call, node, None, fleet.now)
    homes = {home.node: home for home in fleet.picker._present}
    ahead = fleet.picker._ahead(homes[idle], fleet.now)
    assert ahead == pytest.approx(fleet.picker._ahead(homes[busy], fleet.now), rel=0.2)


def test_two_clients_agree_on_a_backend_without_a_word() -> None:
    one, other = CacheAware(Random(1)), CacheAware(Random(2))
    nodes = fake_nodes(8)
    for number in range(100):
        call = CallHints(PATH, (f"{number}-b", f"{number}-a"))
        again = CallHints(PATH, (f"{number}-c", f"{number}-b", f"{number}-a"))
        node = one.pick_for(call, nodes, float(number))
        one.answered(call, node, 0.1, float(number))
        assert other.pick_for(again, nodes, float(number)) is node
        other.answered(again, node, 0.1, float(number))


def test_a_retry_goes_elsewhere() -> None:
    fleet = Fleet()
    home = fleet.serve("hot")
    assert fleet.send("hot", tried=(home,)) is not home
    assert fleet.send("hot", tried=fleet.nodes) in fleet.nodes


def test_a_call_that_was_never_sent_is_forgotten() -> None:
    fleet = Fleet(count=1)
    home = fleet.nodes[0]
    for number in range(100):
        call = CallHints(PATH, (str(number),))
        fleet.picker.pick_for(call, fleet.nodes, fleet.now)
    fleet.now += 1.0
    fleet.send("last")
    assert len(fleet.picker._homes[home].pending) == 1


def test_a_restarted_task_has_nothing() -> None:
    fleet = Fleet(count=2)
    home = fleet.serve("hot")
    home.load.observe(LoadReport(task_id=5), fleet.now)
    assert fleet.serve("hot") is home
    hits = fleet.picker.expected_hits
    home.load.observe(LoadReport(task_id=5), fleet.now)
    fleet.serve("hot")
    assert fleet.picker.expected_hits > hits
    hits = fleet.picker.expected_hits
    fleet.now += 1.0
    home.load.observe(LoadReport(task_id=6), fleet.now)
    fleet.serve("hot")
    assert fleet.picker.expected_hits == hits


def test_many_keys_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbclient.pickers.cache_memory.MOST_KNOWN", 100)
    fleet = Fleet()
    for number in range(1000):
        fleet.serve(f"{number}-b", f"{number}-a")
    assert len(fleet.picker.memory._sent) == 100


def test_a_task_that_restarts_all_the_time_takes_bounded_memory() -> None:
    memory = CacheMemory()
    for number in range(1000):
        memory.note(("hot",), number, 1)
        memory.forget(number)
    assert len(memory._sent["hot"]) <= 2


def test_calls_without_keys_are_spread() -> None:
    fleet = Fleet()
    assert {fleet.send() for _ in range(50)} == set(fleet.nodes)
    assert fleet.picker.keyed_picks == 0


def test_calls_with_keys_have_no_slow_start() -> None:
    """What a newcomer has not answered is ahead of them, and nothing else."""
    picks = []
    for slow_start in (0.0, 3600.0):
        fleet = Fleet(count=2, slow_start=slow_start)
        fleet.nodes[1].load.enter_ready(fleet.now)
        served = [fleet.serve(str(key)) for key in range(100)]
        picks.append([fleet.nodes.index(node) for node in served])
    assert picks[0] == picks[1]
    assert 30 < sum(picks[0]) < 70


def test_it_reads_as_english() -> None:
    fleet = Fleet(count=2, miss_cost=0.5)
    fleet.serve("a")
    fleet.serve("a")
    assert repr(fleet.picker) == (
        "<cache aware over 2: 50% of keys expected to be there, 0.5000 s a miss>"
    )
    assert repr(fleet.picker.memory) == "<1 keys on 1 backends>"
    assert repr(fleet.picker.cost) == "<0.0200 s + 0.5000 s a miss>"


def test_the_factory_takes_the_price() -> None:
    made = picker_factory("cache_aware", slow_start=5.0, miss_cost=0.25)(Random(1))
    assert isinstance(made, CacheAware)
    assert made.cost.price == 0.25


def test_what_failed_is_not_cached_and_what_was_there_is() -> None:
    fleet = Fleet(count=1)
    home = fleet.serve("b", "a")
    fleet.send("d", "c", "b", "a")
    fleet.picker.answered(fleet.call, home, None, fleet.now)
    found, known = fleet.picker.memory.find(("d", "c", "b", "a"))
    assert known == 2
    assert [one.once for one in found.values()] == [2]
