"""The pool: membership, readiness, limits."""

import pytest

from lbclient.model import (
    Endpoint,
    Endpoints,
    LoadReport,
    Outcome,
    State,
    Verdict,
    snapshot,
)
from lbclient.pool import Pool
from lbclient.testing import FakeNode

SERVED = Outcome(Verdict.SERVED, 0.01)


def endpoints(*names: str) -> Endpoints:
    return snapshot([Endpoint(f"{name}:1") for name in names])


def make(endpoint: Endpoint) -> FakeNode:
    return FakeNode(endpoint, State.CONNECTING)


@pytest.fixture
def pool() -> Pool[FakeNode]:
    pool = Pool(make, lambda all_: all_, subset_size=3, active_limit=2)
    pool.reconcile(endpoints("a", "b", "c", "d"))
    return pool


def node(pool: Pool[FakeNode], name: str) -> FakeNode:
    return pool.nodes[f"{name}:1"]


def test_only_the_first_k_in_order_of_preference_are_opened(
    pool: Pool[FakeNode],
) -> None:
    assert list(pool.nodes) == ["a:1", "b:1", "c:1"]
    assert repr(pool) == "0 of 3 backends ready: 3 connecting"


def test_a_snapshot_opens_the_new_drains_the_gone_and_keeps_the_rest(
    pool: Pool[FakeNode],
) -> None:
    kept = node(pool, "b")
    change = pool.reconcile(endpoints("b", "c", "x"))
    assert [n.endpoint.address for n in change.opened] == ["x:1"]
    assert [n.endpoint.address for n in change.drained] == ["a:1"]
    assert node(pool, "b") is kept


def test_the_same_snapshot_again_changes_nothing(pool: Pool[FakeNode]) -> None:
    pool.observe(node(pool, "a"), State.READY, 0.0)
    ready = pool.ready
    assert pool.reconcile(endpoints("a", "b", "c", "d")) == ((), ())
    assert pool.ready is ready


def test_a_changed_weight_updates_the_node_in_place(pool: Pool[FakeNode]) -> None:
    kept = node(pool, "a")
    pool.reconcile((Endpoint("a:1", weight=3.0),))
    assert node(pool, "a") is kept
    assert kept.endpoint.weight == 3.0


def test_only_ready_nodes_are_ready(pool: Pool[FakeNode]) -> None:
    for name, state in zip(
        "abc", (State.READY, State.LAME_DUCK, State.REFUSING), strict=True
    ):
        pool.observe(node(pool, name), state, 0.0)
    assert pool.ready == (node(pool, "a"),)


def test_a_drained_node_is_not_ready_any_more(pool: Pool[FakeNode]) -> None:
    pool.observe(node(pool, "a"), State.READY, 0.0)
    pool.reconcile(endpoints("b"))
    assert pool.ready == ()


def test_lame_ducks_are_better_than_nothing(pool: Pool[FakeNode]) -> None:
    pool.observe(node(pool, "a"), State.LAME_DUCK, 0.0)
    pool.observe(node(pool, "b"), State.REFUSING, 0.0)
    assert pool.ready == (node(pool, "a"),)
    pool.observe(node(pool, "c"), State.READY, 0.0)
    assert pool.ready == (node(pool, "c"),)


def test_a_full_node_leaves_and_comes_back(pool: Pool[FakeNode]) -> None:
    full = node(pool, "a")
    pool.observe(full, State.READY, 0.0)
    pool.begin(full)
    assert pool.ready == (full,)
    pool.begin(full)
    assert not pool.ready
    assert pool.full() == 1
    assert "1 full with 2 calls each" in repr(pool)
    pool.finish(full, SERVED, 1.0)
    assert pool.ready == (full,)


def test_full_ready_nodes_do_not_make_lame_ducks_eligible(
    pool: Pool[FakeNode],
) -> None:
    full = node(pool, "a")
    pool.observe(full, State.READY, 0.0)
    pool.observe(node(pool, "b"), State.LAME_DUCK, 0.0)
    pool.begin(full)
    pool.begin(full)
    assert pool.ready == ()


@pytest.mark.parametrize("state", list(State))
def test_only_refusing_nodes_promise_nothing(
    pool: Pool[FakeNode], state: State
) -> None:
    for one in pool.nodes.values():
        pool.observe(one, State.REFUSING, 0.0)
    assert not pool.is_promising()
    pool.observe(node(pool, "b"), state, 0.0)
    assert pool.is_promising() is (state is not State.REFUSING)


def test_a_lost_connection_forgets_what_was_reported(pool: Pool[FakeNode]) -> None:
    one = node(pool, "a")
    pool.observe(one, State.READY, 5.0)
    pool.observe(one, State.LAME_DUCK, 6.0)
    one.load.observe(LoadReport(0.5), 7.0)
    pool.observe(one, State.CONNECTING, 8.0)
    assert one.load.report is None


def test_a_report_that_comes_before_the_state_is_kept(pool: Pool[FakeNode]) -> None:
    one = node(pool, "a")
    one.load.observe(LoadReport(0.5), 4.0)
    pool.observe(one, State.READY, 5.0)
    assert one.load.report == LoadReport(0.5)


def test_being_ready_is_counted_from_the_last_time_it_became_so(
    pool: Pool[FakeNode],
) -> None:
    one = node(pool, "a")
    pool.observe(one, State.READY, 5.0)
    assert one.load.ready_at == 5.0
    assert not pool.observe(one, State.READY, 6.0)
    assert one.load.ready_at == 5.0
    pool.observe(one, State.CONNECTING, 7.0)
    assert one.load.ready_at is None
