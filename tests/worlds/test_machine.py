"""Whatever is done to a channel, in whatever order: its counts hold at every moment.

A machine of hypothesis' makes calls, gives them up, breaks servers, links and names,
and lets time pass. After each step the channel's numbers are compared with what the
callers know; at the end all that a world promises is asked. What breaks shrinks to a
few steps.
"""

import gc
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.worlds.invariants import broken
from tests.worlds.plan import (
    CLIENT_FAULTS,
    IDEMPOTENT,
    KINDS,
    MAY_REPEAT,
    MORE_SERVER_FAULTS,
    SERVER_FAULTS,
    CallPlan,
    Fault,
    Plan,
    ServerPlan,
)
from tests.worlds.world import World

SETTINGS = st.fixed_dictionaries(
    {"idempotent": st.just(MAY_REPEAT), "seed": st.integers(0, 9)},
    optional={
        "active_limit": st.sampled_from((1, 2)),
        "hedging": st.booleans(),
        "hedging_delay": st.just(0.05),
        "idle_after": st.sampled_from((0.0, 3.0)),
        "max_waiting": st.just(2),
        "picker": st.sampled_from(("p2c", "round_robin", "prequal")),
    },
)
TIMEOUTS = st.sampled_from((0.05, 0.5, 2.0, 20.0, None))
STOPS = st.none() | st.sampled_from(
    [(0.0, "call"), (0.0, "task"), (0.001, "task"), (0.2, "call"), (0.2, "task")]
)


KINDS_OF_SERVERS = st.sampled_from(("lbclient", "lbclient", "health"))
ENDS = st.sampled_from(("ok", "ok", "unavailable"))


class ChannelMachine(RuleBasedStateMachine):
    """One channel, up to three servers, and all that may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.calls = 0

    @initialize(
        kinds=st.lists(KINDS_OF_SERVERS, min_size=1, max_size=3),
        config=SETTINGS,
        is_ready=st.booleans(),
    )
    def open(self, kinds: list[str], config: dict[str, object], is_ready: bool) -> None:
        servers = tuple(
            ServerPlan(f"10.0.0.{number + 1}:50051", kind)
            for number, kind in enumerate(kinds)
        )
        plan = Plan(1, 0.0, 0.001, tuple(config.items()), servers, (), ())
        self.world = World(plan)
        gc.freeze()
        self.stack.callback(gc.unfreeze)
        self.stack.enter_context(self.world.opened())
        self.stack.callback(self.end)
        if is_ready:
            self.world.client.call_soon(self.world.channel.get_state, True)
            self.wait(0.5)

    @rule(
        method=st.sampled_from(list(KINDS)),
        timeout=TIMEOUTS,
        takes=st.sampled_from((0.0, 0.05, 0.5)),
        stops=STOPS,
        ends=ENDS,
    )
    def call(
        self,
        method: str,
        timeout: float | None,
        takes: float,
        stops: tuple[float, str] | None = None,
        ends: str = "ok",
    ) -> None:
        call = CallPlan(
            self.calls, 0.0, method, timeout, takes, parts=2, stops=stops, ends=ends
        )
        self.calls += 1
        self.world.caller.begin(call)

    @rule(
        kind=st.sampled_from(list(SERVER_FAULTS | MORE_SERVER_FAULTS)),
        server=st.integers(0, 2),
        lasts=st.sampled_from((0.1, 1.0, 8.0)),
    )
    def break_server(self, kind: str, server: int, lasts: float) -> None:
        server %= len(self.world.plan.servers)
        self.world.begin_fault(Fault(self.world.clock.now, kind, server, lasts))

    @rule(kind=st.sampled_from(list(CLIENT_FAULTS)), lasts=st.sampled_from((0.1, 3.0)))
    def break_client(self, kind: str, lasts: float) -> None:
        self.world.begin_fault(Fault(self.world.clock.now, kind, -1, lasts))

    @rule(server=st.integers(0, 2), lasts=st.sampled_from((0.1, 8.0)))
    def drain(self, server: int, lasts: float) -> None:
        self.break_server("drain", server, lasts)

    @rule(kept=st.lists(st.booleans(), min_size=3, max_size=3))
    def resolve(self, kept: list[bool]) -> None:
        """The name service knows others than before: some of those that are up."""
        up = [address for address, one in self.world.machines.items() if one.is_up()]
        known = [one for number, one in enumerate(up) if kept[number % len(kept)]]
        if known:
            self.world.source.truth = dict.fromkeys(known)
            self.world.source.tell()

    @rule()
    def retry(self) -> None:
        """Calls that may be sent again fail, more of them than may."""
        for _ in range(3):
            self.call(IDEMPOTENT, 2.0, 0.0, ends="unavailable")
        self.wait(0.5)

    @rule()
    def wake(self) -> None:
        """A call after a time without any: where `idle_after` is set it wakes one."""
        self.wait(12.0)
        self.call(IDEMPOTENT, 2.0, 0.05)

    @rule(
        kind=st.sampled_from(("freeze", "cut", "hang", "mute")),
        server=st.integers(0, 2),
        timeout=st.sampled_from((0.1, 8.0)),
    )
    def doubt(self, kind: str, server: int, timeout: float) -> None:
        """Calls miss their deadlines, or wait, at a server that answers none."""
        self.break_server(kind, server, 8.0)
        for _ in range(8):
            self.call(IDEMPOTENT, timeout, 0.0)
            self.wait(0.3)

    @rule(seconds=st.sampled_from((0.0005, 0.01, 0.06, 0.5, 3.0, 12.0)))
    def wait(self, seconds: float) -> None:
        self.world.clock.run(self.world.clock.now + seconds)

    @invariant()
    def counts_hold(self) -> None:
        world = self.world
        known = world.channel.statistics()
        live = [
            seen
            for seen in world.caller.seen
            if seen.has_begun and seen.done_at is None
        ]
        assert known.in_flight + known.waiting == len(live), (known, live)
        in_flight = sum(backend.in_flight for backend in known.backends)
        assert in_flight <= known.in_flight
        for one in known.backends:
            neutral = one.abandoned + one.declined
            ended = one.served + one.rejected + one.failed + neutral
            assert one.started == ended + one.in_flight, one

    def end(self) -> None:
        world = self.world
        world.finish()
        # What was done, for a reader of the failure and for the promises.
        faults = tuple(fault for _, _, fault, _ in world.faults)
        world.plan = replace(world.plan, faults=faults)

    def teardown(self) -> None:
        self.stack.close()
        if hasattr(self, "world"):
            assert not broken(self.world)


def test_a_check_that_is_due_as_its_connection_is_closed_is_no_error() -> None:
    """The machine found it: an idle connection was closed at the moment of a health
    check, which left an exception that nobody retrieved."""
    machine = ChannelMachine()
    machine.open(["health"], {"seed": 9, "idle_after": 3.0}, is_ready=True)
    machine.break_client("client blocks", 3.0)
    machine.teardown()


TestChannelMachine = pytest.mark.slow(ChannelMachine.TestCase)
TestChannelMachine.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None
)
