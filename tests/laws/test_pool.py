"""Whatever happens in whatever order, the pool keeps its promises."""

from collections import Counter
from itertools import takewhile
from math import inf
from random import Random

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbclient.core.backends.pool import PRESENT, Change, Limits, Pool
from lbclient.core.model import Endpoint, Outcome, State, Verdict, snapshot
from lbclient.pickers import PICKERS
from lbclient.testing import FakeNode
from tests.held import held_by

LIMIT = 2
SIZE = 3
EXTRA = 2
REPLACE_AFTER = 1.0
SETTLE_AFTER = 10.0
LIMITS = Limits(SIZE, LIMIT, REPLACE_AFTER, SETTLE_AFTER, EXTRA)
NAMES = st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True)


class PoolMachine(RuleBasedStateMachine):
    """Resolve, connect, call, finish and drain, with a model of what is in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool: Pool[FakeNode] = Pool(
            lambda endpoint: FakeNode(endpoint, State.CONNECTING),
            lambda endpoints: endpoints,
            LIMITS,
        )
        self.absent_since: dict[FakeNode, float] = {}
        self.pickers = [make(Random(7)) for make in PICKERS.values()]
        self.in_flight: list[FakeNode] = []
        self.drained: list[FakeNode] = []

    @rule(names=NAMES, leaving=st.sets(st.sampled_from("abcdefgh")))
    def resolve(self, names: list[str], leaving: set[str]) -> None:
        endpoints = snapshot(
            [Endpoint(f"{n}:1", lame_duck=n in leaving) for n in names]
        )
        self.take(self.pool.reconcile(endpoints, self.now))

    @rule()
    def review(self) -> None:
        self.take(self.pool.review(self.now))

    def take(self, change: Change[FakeNode]) -> None:
        self.drained += change.drained
        assert not set(map(id, change.opened)) & set(map(id, change.drained))
        for node in change.opened:
            self.absent_since[node] = self.now
        self.nobody_is_replaced_twice_or_too_late()
        assert self.pool.review(self.now) == ((), ())

    @precondition(lambda self: self.pool.nodes)
    @rule(data=st.data(), state=st.sampled_from(State))
    def observe(self, data: st.DataObject, state: State) -> None:
        node = data.draw(st.sampled_from(list(self.pool.nodes.values())))
        self.observe_one(node, state)

    def observe_one(self, node: FakeNode, state: State) -> None:
        self.pool.observe(node, state, self.now)
        if state in PRESENT:
            self.absent_since.pop(node, None)
        else:
            self.absent_since.setdefault(node, self.now)

    @precondition(lambda self: self.pool.nodes)
    @rule(state=st.sampled_from(State), some=st.integers(0, 2**12))
    def observe_many_at_once(self, state: State, some: int) -> None:
        """Before anybody asks who is ready."""
        for place, node in enumerate(list(self.pool.nodes.values())):
            if some >> place & 1:
                self.observe_one(node, state)

    @rule(seconds=st.floats(0.0, 100.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.pool.ready)
    @rule(index=st.integers(0, len(PICKERS) - 1))
    def call(self, index: int) -> None:
        node = self.pickers[index].pick(self.pool.ready, self.now)
        assert any(node is one for one in self.pool.ready)
        node.load.begin()
        self.in_flight.append(node)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), verdict=st.sampled_from(Verdict))
    def finish(self, data: st.DataObject, verdict: Verdict) -> None:
        index = data.draw(st.integers(0, len(self.in_flight) - 1))
        node = self.in_flight.pop(index)
        node.load.finish(Outcome(verdict, 0.01), self.now)

    @invariant()
    def in_flight_is_conserved(self) -> None:
        for node in (*self.pool.nodes.values(), *self.drained):
            expected = sum(node is one for one in self.in_flight)
            assert node.load.in_flight == expected

    @invariant()
    def ready_is_what_may_take_a_call(self) -> None:
        nodes = self.pool.nodes.values()
        ready = [node for node in nodes if node.state is State.READY]
        can_wake = any(node.state is State.INACTIVE for node in nodes)
        lame_ducks = [node for node in nodes if node.state is State.LAME_DUCK]
        usable = ready or ([] if can_wake else lame_ducks)
        expected = [node for node in usable if node.load.in_flight < LIMIT]
        assert [id(n) for n in self.pool.read_ready()] == [id(n) for n in expected]
        assert [id(n) for n in self.pool.ready] == [id(n) for n in expected]
        assert self.pool.ready is self.pool.ready

    @invariant()
    def what_is_counted_is_what_is_there(self) -> None:
        nodes = list(self.pool.nodes.values())
        assert self.pool.counts == Counter(node.state for node in nodes)
        usable = (State.READY, State.LAME_DUCK)
        full = [n for n in nodes if n.state in usable and n.load.in_flight >= LIMIT]
        assert self.pool.full() == len(full)

    @invariant()
    def a_review_that_nobody_wants_changes_nothing(self) -> None:
        if not self.pool.wants_review():
            assert self.pool.review(self.now) == ((), ())
            assert self.pool.review(self.now + 1000.0) == ((), ())

    @invariant()
    def nobody_who_left_is_ready(self) -> None:
        assert not set(map(id, self.pool.ready)) & set(map(id, self.drained))

    def nobody_is_replaced_twice_or_too_late(self) -> None:
        """After a review: a full subset of those not out, where there are enough."""
        nodes = self.pool.nodes
        most = min(SIZE + EXTRA, len(self.pool.members))
        order = [endpoint.address for endpoint in self.pool.members[:most]]
        wanted = list(takewhile(nodes.__contains__, order))
        present = [nodes[a] for a in wanted if not self.is_out(nodes[a])]
        assert len(wanted) >= min(SIZE, most)
        assert len(wanted) == most or len(present) >= SIZE
        others = [node for address, node in nodes.items() if address not in wanted]
        serving = [node for node in others if node.state is State.READY]
        assert all(
            node.state is State.LAME_DUCK and node.endpoint.lame_duck
            for node in others
            if node not in serving
        )
        ready = sum(node.state is State.READY for node in nodes.values())
        assert not serving or ready <= SIZE

    def is_out(self, node: FakeNode) -> bool:
        """At least these. The pool may count others as out, such as one that comes and
        goes: tests/unit/test_pool.py."""
        since = self.absent_since.get(node, inf)
        return node.state is State.LAME_DUCK or self.now >= since + REPLACE_AFTER

    @invariant()
    def connections_are_bounded(self) -> None:
        assert len(self.pool.nodes) <= SIZE + EXTRA + SIZE + SIZE

    @invariant()
    def a_lame_duck_by_the_resolver_s_word_is_a_member_only_among_its_like(
        self,
    ) -> None:
        endpoints, members = self.pool.endpoints, self.pool.members
        staying = tuple(each for each in endpoints if not each.lame_duck)
        assert members == (staying or endpoints)

    @invariant()
    def what_time_alone_changes_is_known_beforehand(self) -> None:
        due = self.pool.review_at(self.now)
        assert due is None or due > self.now

    def teardown(self) -> None:
        """Nothing is kept of who is gone, once somebody asks who is ready. Pickers keep
        the last list that they picked from."""
        assert not set(self.pool.ready) - set(self.pool.nodes.values())
        held = set(held_by(self.pool, FakeNode))
        seen_by_pickers = set(held_by(self.pickers, FakeNode))
        assert held <= {*self.pool.nodes.values(), *seen_by_pickers}


TestPoolMachine = PoolMachine.TestCase
