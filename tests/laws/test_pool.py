"""Whatever happens in whatever order, the pool keeps its promises."""

from random import Random

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbclient.model import Endpoint, Outcome, State, Verdict, snapshot
from lbclient.pickers import PICKERS
from lbclient.pool import Pool
from lbclient.testing import FakeNode

LIMIT = 2
SIZE = 3
NAMES = st.lists(st.sampled_from("abcdef"), max_size=6, unique=True)


class PoolMachine(RuleBasedStateMachine):
    """Resolve, connect, call, finish and drain, with a model of what is in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool: Pool[FakeNode] = Pool(
            lambda endpoint: FakeNode(endpoint, State.CONNECTING),
            lambda endpoints: endpoints,
            SIZE,
            LIMIT,
        )
        self.pickers = [make(Random(7)) for make in PICKERS.values()]
        self.in_flight: list[FakeNode] = []
        self.drained: list[FakeNode] = []

    @rule(names=NAMES)
    def resolve(self, names: list[str]) -> None:
        change = self.pool.reconcile(snapshot([Endpoint(f"{n}:1") for n in names]))
        self.drained += change.drained
        assert not set(map(id, change.opened)) & set(map(id, change.drained))

    @precondition(lambda self: self.pool.nodes)
    @rule(data=st.data(), state=st.sampled_from(State))
    def observe(self, data: st.DataObject, state: State) -> None:
        node = data.draw(st.sampled_from(list(self.pool.nodes.values())))
        self.pool.observe(node, state, self.now)

    @rule(seconds=st.floats(0.0, 100.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.pool.ready)
    @rule(index=st.integers(0, len(PICKERS) - 1))
    def call(self, index: int) -> None:
        node = self.pickers[index].pick(self.pool.ready, self.now)
        assert any(node is one for one in self.pool.ready)
        self.pool.begin(node)
        self.in_flight.append(node)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), verdict=st.sampled_from(Verdict))
    def finish(self, data: st.DataObject, verdict: Verdict) -> None:
        index = data.draw(st.integers(0, len(self.in_flight) - 1))
        node = self.in_flight.pop(index)
        self.pool.finish(node, Outcome(verdict, 0.01), self.now)

    @invariant()
    def in_flight_is_conserved(self) -> None:
        for node in (*self.pool.nodes.values(), *self.drained):
            expected = sum(node is one for one in self.in_flight)
            assert node.load.in_flight == expected

    @invariant()
    def ready_is_what_may_take_a_call(self) -> None:
        nodes = self.pool.nodes.values()
        ready = [node for node in nodes if node.state is State.READY]
        usable = ready or [node for node in nodes if node.state is State.LAME_DUCK]
        expected = [node for node in usable if node.load.in_flight < LIMIT]
        assert [id(n) for n in self.pool.ready] == [id(n) for n in expected]

    @invariant()
    def nobody_who_left_is_ready(self) -> None:
        assert not set(map(id, self.pool.ready)) & set(map(id, self.drained))

    @invariant()
    def the_subset_has_its_size(self) -> None:
        expected = min(SIZE, len(self.pool.endpoints))
        assert len(self.pool.nodes) == expected


TestPoolMachine = PoolMachine.TestCase
