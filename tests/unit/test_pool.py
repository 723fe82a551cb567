"""The pool: membership, readiness, limits."""

from collections.abc import Iterable

import pytest

from lbclient.core.backends.pool import Limits, Pool, few
from lbclient.core.model import (
    Endpoint,
    Endpoints,
    LoadReport,
    Outcome,
    State,
    Verdict,
    snapshot,
)
from lbclient.testing import FakeNode

SERVED = Outcome(Verdict.SERVED, 0.01)


def endpoints(*names: str) -> Endpoints:
    return snapshot([Endpoint(f"{name}:1") for name in names])


def make(endpoint: Endpoint) -> FakeNode:
    return FakeNode(endpoint, State.CONNECTING)


@pytest.fixture
def pool() -> Pool[FakeNode]:
    limits = Limits(
        subset_size=3,
        active_limit=2,
        replace_after=1.0,
        settle_after=10.0,
        max_replacements=2,
    )
    pool = Pool(make, lambda all_: all_, limits)
    pool.reconcile(endpoints("a", "b", "c", "d", "e", "f"), 0.0)
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
    change = pool.reconcile(endpoints("b", "c", "x"), 0.0)
    assert [n.endpoint.address for n in change.opened] == ["x:1"]
    assert [n.endpoint.address for n in change.drained] == ["a:1"]
    assert node(pool, "b") is kept


def test_the_same_snapshot_again_changes_nothing(pool: Pool[FakeNode]) -> None:
    pool.observe(node(pool, "a"), State.READY, 0.0)
    ready = pool.ready
    assert pool.reconcile(endpoints("a", "b", "c", "d"), 0.0) == ((), ())
    assert pool.ready is ready


def test_a_changed_weight_updates_the_node_in_place(pool: Pool[FakeNode]) -> None:
    kept = node(pool, "a")
    pool.reconcile((Endpoint("a:1", weight=3.0),), 0.0)
    assert node(pool, "a") is kept
    assert kept.endpoint.weight == 3.0


def test_only_ready_nodes_are_ready(pool: Pool[FakeNode]) -> None:
    for name, state in zip(
        "abc", (State.READY, State.LAME_DUCK, State.REFUSING), strict=True
    ):
        pool.observe(node(pool, name), state, 0.0)
    assert pool.ready == (node(pool, "a"),)


def addresses(nodes: Iterable[FakeNode]) -> str:
    return "".join(node.endpoint.address[0] for node in nodes)


def all_ready(pool: Pool[FakeNode], now: float) -> None:
    for one in pool.nodes.values():
        pool.observe(one, State.READY, now)


def test_one_that_leaves_serves_until_another_is_ready_in_its_stead(
    pool: Pool[FakeNode],
) -> None:
    left = node(pool, "a")
    pool.observe(left, State.READY, 0.0)
    assert pool.reconcile(endpoints("x"), 1.0).drained
    assert left in pool.ready
    pool.observe(node(pool, "x"), State.READY, 2.0)
    assert pool.review(2.0).drained == (left,)
    assert addresses(pool.ready) == "x"


def going(*names: str) -> Endpoints:
    return tuple(Endpoint(f"{name}:1", lame_duck=True) for name in names)


def test_a_lame_duck_by_the_resolver_s_word_is_replaced_and_kept(
    pool: Pool[FakeNode],
) -> None:
    all_ready(pool, 0.0)
    pool.observe(node(pool, "a"), State.LAME_DUCK, 1.0)
    change = pool.reconcile((*going("a"), *endpoints("b", "c", "d")), 1.0)
    assert (addresses(change.opened), addresses(change.drained)) == ("d", "")
    assert addresses(pool.ready) == "bc"
    assert node(pool, "a").endpoint.lame_duck
    for name in "bcd":
        pool.observe(node(pool, name), State.REFUSING, 2.0)
    assert addresses(pool.ready) == "a"
    pool.observe(node(pool, "a"), State.CONNECTING, 3.0)
    assert addresses(pool.review(3.0).drained) == "a"


def test_an_inactive_lame_duck_by_the_resolver_s_word_is_not_kept() -> None:
    """Who has no connection to it would be the first whose call wakes it."""
    away: list[FakeNode] = []
    pool = Pool(make, lambda all_: all_, Limits(2, 9, 1.0, 10.0, 2), away.__contains__)
    pool.reconcile(endpoints("a", "b"), 0.0)
    away.append(node(pool, "a"))
    pool.observe(away[0], State.INACTIVE, 1.0)
    pool.observe(away[0], State.LAME_DUCK, 2.0)
    change = pool.reconcile((*going("a"), *endpoints("b")), 2.0)
    assert addresses(change.drained) == "a"


def test_a_lame_duck_by_the_resolver_s_word_is_not_opened(
    pool: Pool[FakeNode],
) -> None:
    pool.reconcile((*going("a"), *endpoints("b", "c")), 0.0)
    assert addresses(pool.nodes.values()) == "bc"
    assert (pool.subset_size(), len(pool.endpoints)) == (2, 3)


def test_if_all_are_lame_ducks_they_are_better_than_none(pool: Pool[FakeNode]) -> None:
    pool.reconcile(going("x", "y"), 0.0)
    assert addresses(pool.nodes.values()) == "xy"
    pool.observe(node(pool, "x"), State.LAME_DUCK, 1.0)
    assert addresses(pool.ready) == "x"


def test_lame_ducks_that_are_kept_are_no_more_than_a_subset() -> None:
    pool = Pool(make, lambda all_: all_, Limits(4, 9, 1.0, 10.0, 4))
    pool.reconcile(endpoints(*"abcdefgh"), 0.0)
    for name in "abcd":
        pool.observe(node(pool, name), State.LAME_DUCK, 0.0)
    pool.review(0.0)
    for name in "efgh":
        pool.observe(node(pool, name), State.LAME_DUCK, 0.0)
    change = pool.reconcile((*going(*"abcdefgh"), *endpoints("x")), 0.0)
    assert addresses(change.drained) == "efgh"


def test_one_that_leaves_and_does_not_serve_is_drained_at_once(
    pool: Pool[FakeNode],
) -> None:
    all_ready(pool, 0.0)
    pool.observe(node(pool, "a"), State.LAME_DUCK, 1.0)
    change = pool.reconcile(endpoints("x", "y", "z"), 1.0)
    assert addresses(change.drained) == "a"
    assert addresses(pool.ready) == "bc"


def test_a_lame_duck_is_replaced_at_once(pool: Pool[FakeNode]) -> None:
    all_ready(pool, 0.0)
    pool.observe(node(pool, "b"), State.LAME_DUCK, 5.0)
    assert addresses(pool.review(5.0).opened) == "d"
    assert addresses(pool.nodes.values()) == "abcd"
    assert pool.replacements() == 1


@pytest.mark.parametrize("state", [State.CONNECTING, State.STARTING, State.REFUSING])
def test_who_is_missing_is_replaced_after_a_while(
    pool: Pool[FakeNode], state: State
) -> None:
    all_ready(pool, 0.0)
    pool.observe(node(pool, "b"), state, 5.0)
    assert pool.review(5.0) == ((), ())
    assert pool.review_at(5.0) == 6.0
    assert addresses(pool.review(6.0).opened) == "d"


def test_being_refused_again_is_not_the_beginning_of_being_missing(
    pool: Pool[FakeNode],
) -> None:
    all_ready(pool, 0.0)
    for i in range(5):
        pool.observe(node(pool, "b"), State.CONNECTING, 5.0 + 0.2 * i)
        pool.observe(node(pool, "b"), State.REFUSING, 5.1 + 0.2 * i)
    assert addresses(pool.review(6.0).opened) == "d"


def test_a_moment_of_being_ready_is_not_being_back(pool: Pool[FakeNode]) -> None:
    all_ready(pool, 0.0)
    opened = ""
    for i in range(10):
        pool.observe(node(pool, "b"), State.REFUSING, 5.0 + 0.5 * i)
        pool.observe(node(pool, "b"), State.READY, 5.4 + 0.5 * i)
        pool.observe(node(pool, "b"), State.REFUSING, 5.5 + 0.5 * i)
        opened += addresses(pool.review(5.5 + 0.5 * i).opened)
        for one in pool.nodes.values():
            if one is not node(pool, "b"):
                pool.observe(one, State.READY, 5.5 + 0.5 * i)
    assert opened == "d"


def test_who_leaves_does_not_serve_beside_a_full_subset(pool: Pool[FakeNode]) -> None:
    all_ready(pool, 0.0)
    pool.observe(node(pool, "c"), State.REFUSING, 1.0)
    left = node(pool, "b")
    assert pool.reconcile(endpoints("a", "c", "x", "y"), 1.0).drained == ()
    assert left in pool.ready
    pool.observe(node(pool, "x"), State.READY, 1.5)
    assert pool.review(1.5).drained == ()
    pool.observe(node(pool, "c"), State.READY, 1.6)
    assert pool.review(1.6).drained == (left,)


def test_an_empty_fleet_needs_no_order() -> None:
    limits = Limits(3, 2, replace_after=1.0, settle_after=10.0, max_replacements=2)
    pool: Pool[FakeNode] = Pool(make, lambda all_: [all_[0]], limits)
    pool.reconcile(endpoints("a"), 0.0)
    assert addresses(pool.reconcile((), 1.0).drained) == "a"


def test_a_replacement_goes_when_the_one_it_replaced_has_settled(
    pool: Pool[FakeNode],
) -> None:
    all_ready(pool, 0.0)
    pool.observe(node(pool, "b"), State.LAME_DUCK, 5.0)
    pool.review(5.0)
    pool.observe(node(pool, "d"), State.READY, 5.1)
    pool.observe(node(pool, "b"), State.READY, 20.0)
    assert pool.review(20.0) == ((), ())
    assert pool.review_at(20.0) == 30.0
    assert pool.review(29.0) == ((), ())
    assert addresses(pool.review(30.0).drained) == "d"
    assert pool.review_at(30.0) is None


def test_one_that_comes_and_goes_costs_one_replacement(pool: Pool[FakeNode]) -> None:
    all_ready(pool, 0.0)
    opened = ""
    for second in range(5, 105):
        state = State.READY if second % 2 else State.LAME_DUCK
        pool.observe(node(pool, "b"), state, float(second))
        change = pool.review(float(second))
        assert not change.drained
        opened += addresses(change.opened)
        all_ready_but_b = [n for n in pool.nodes.values() if n is not node(pool, "b")]
        for one in all_ready_but_b:
            pool.observe(one, State.READY, float(second))
    assert opened == "d"


def test_a_rolling_restart_moves_one_connection_at_a_time(
    pool: Pool[FakeNode],
) -> None:
    all_ready(pool, 0.0)
    moves = []
    for i, name in enumerate("abc"):
        now = 100.0 * (i + 1)
        pool.observe(node(pool, name), State.LAME_DUCK, now)
        moves.append(addresses(pool.review(now).opened))
        pool.observe(node(pool, "d"), State.READY, now + 0.1)
        pool.observe(node(pool, name), State.REFUSING, now + 5.0)
        moves.append(addresses(pool.review(now + 5.0).opened))
        pool.observe(node(pool, name), State.READY, now + 7.0)
        moves.append(addresses(pool.review(now + 17.0).drained))
    assert moves == ["d", "", "d"] * 3


def test_a_replacement_that_is_out_too_is_replaced_up_to_the_bound(
    pool: Pool[FakeNode],
) -> None:
    for now in range(10):
        for one in pool.nodes.values():
            pool.observe(one, State.REFUSING, float(now))
        pool.review(float(now))
    assert addresses(pool.nodes.values()) == "abcde"
    assert pool.replacements() == 2


def test_lame_ducks_are_better_than_nothing(pool: Pool[FakeNode]) -> None:
    pool.observe(node(pool, "a"), State.LAME_DUCK, 0.0)
    pool.observe(node(pool, "b"), State.REFUSING, 0.0)
    assert pool.ready == (node(pool, "a"),)
    pool.observe(node(pool, "c"), State.READY, 0.0)
    assert pool.ready == (node(pool, "c"),)


def test_a_full_node_leaves_and_comes_back(pool: Pool[FakeNode]) -> None:
    full = node(pool, "a")
    pool.observe(full, State.READY, 0.0)
    full.load.begin()
    assert pool.ready == (full,)
    full.load.begin()
    assert not pool.ready
    assert pool.full() == 1
    assert "1 full with 2 calls each" in repr(pool)
    full.load.finish(SERVED, 1.0)
    assert pool.ready == (full,)


def test_full_ready_nodes_do_not_make_lame_ducks_eligible(
    pool: Pool[FakeNode],
) -> None:
    full = node(pool, "a")
    pool.observe(full, State.READY, 0.0)
    pool.observe(node(pool, "b"), State.LAME_DUCK, 0.0)
    full.load.begin()
    full.load.begin()
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


def test_an_order_that_names_one_twice_opens_it_once() -> None:
    limits = Limits(3, 2, replace_after=1.0, settle_after=10.0, max_replacements=2)
    pool = Pool(make, lambda all_: [*all_, *all_], limits)
    assert addresses(pool.reconcile(endpoints("a", "b"), 0.0).opened) == "ab"
    assert pool.reconcile(endpoints("a", "b"), 1.0) == ((), ())


def test_a_subset_that_fails_leaves_the_pool_as_it_is() -> None:
    limits = Limits(3, 2, replace_after=1.0, settle_after=10.0, max_replacements=2)
    orders = iter([endpoints("a", "b"), None])
    pool: Pool[FakeNode] = Pool(make, lambda _: next(orders), limits)  # type: ignore[arg-type]
    pool.reconcile(endpoints("a", "b"), 0.0)
    with pytest.raises(TypeError):
        pool.reconcile(endpoints("c"), 1.0)
    assert addresses(pool.nodes.values()) == "ab"
    assert pool.endpoints == endpoints("a", "b")


def test_an_inactive_node_is_as_good_as_ready_and_is_woken_before_a_lame_duck(
    pool: Pool[FakeNode],
) -> None:
    all_ready(pool, 0.0)
    pool.observe(node(pool, "a"), State.LAME_DUCK, 5.0)
    assert addresses(pool.review(5.0).opened) == "d"
    for name in "bcd":
        pool.observe(node(pool, name), State.INACTIVE, 6.0)
    assert pool.review(100.0) == ((), ())
    assert pool.ready == ()
    pool.observe(node(pool, "a"), State.INACTIVE, 101.0)
    assert addresses(pool.review(101.0).drained) == "d", "no need to settle"


def test_who_was_inactive_is_missing_from_the_moment_that_it_wakes(
    pool: Pool[FakeNode],
) -> None:
    for one in pool.nodes.values():
        pool.observe(one, State.INACTIVE, 0.0)
    woken = node(pool, "a")
    pool.observe(woken, State.CONNECTING, 50.0)
    assert pool.review(50.0) == ((), ())
    assert pool.review_at(50.0) == 51.0
    assert addresses(pool.review(51.0).opened) == "d"


def test_lame_ducks_that_are_away_or_expected_back() -> None:
    """The one cannot be called; the other is replaced only if it stays a lame duck."""
    limits = Limits(1, 2, replace_after=1.0, settle_after=10.0, max_replacements=1)
    away: list[FakeNode] = []
    back: list[FakeNode] = []
    pool = Pool(make, lambda all_: all_, limits, away.__contains__, back.__contains__)
    pool.reconcile(endpoints("a", "b"), 0.0)
    one = node(pool, "a")
    pool.observe(one, State.READY, 0.0)
    back.append(one)
    pool.observe(one, State.LAME_DUCK, 5.0)
    assert pool.review(5.0) == ((), ())
    assert pool.ready == (one,)
    assert addresses(pool.review(6.0).opened) == "b"
    away.append(one)
    pool.observe(node(pool, "b"), State.REFUSING, 7.0)
    assert not pool.ready


def test_who_is_avoided_comes_last_also_when_it_is_back(pool: Pool[FakeNode]) -> None:
    for each in list(pool.nodes.values()):
        pool.observe(each, State.READY, 0.0)
    change = pool.avoid(["a:1"], 0.0)
    assert addresses(change.opened) == "d"
    pool.observe(node(pool, "d"), State.READY, 0.0)
    pool.review(0.0)
    assert addresses(pool.nodes.values()) == "bcd"
    pool.reconcile(endpoints("b", "c", "d", "e", "f"), 1.0)
    pool.reconcile(endpoints("a", "b", "c", "d", "e", "f"), 2.0)
    assert addresses(pool.nodes.values()) == "bcd"


def test_half_of_those_it_does_not_need_are_avoided_at_most(
    pool: Pool[FakeNode],
) -> None:
    pool.avoid(["a:1"], 0.0)
    pool.avoid(["b:1"], 0.0)  # (6 - 3) // 2 is one
    assert addresses(pool.nodes.values())[0] == "a"


def test_who_is_avoided_stays_so_when_another_one_is(pool: Pool[FakeNode]) -> None:
    pool.reconcile(endpoints(*"abcdefgh"), 0.0)
    pool.avoid(["a:1"], 0.0)
    pool.avoid(["b:1"], 0.0)  # (8 - 3) // 2 are two
    assert addresses(pool.nodes.values()) == "cde"


def test_one_that_is_avoided_stands_in_no_longer_than_it_must(
    pool: Pool[FakeNode],
) -> None:
    pool.reconcile(endpoints(*"abcde"), 0.0)
    all_ready(pool, 0.0)
    for name in "cd":
        pool.observe(node(pool, name), State.LAME_DUCK, 5.0)
        pool.review(5.0)
    pool.observe(node(pool, "e"), State.READY, 5.0)
    pool.avoid(["a:1"], 6.0)
    assert addresses(pool.nodes.values()) == "bcdea"
    pool.observe(node(pool, "c"), State.READY, 7.0)
    assert addresses(pool.review(7.0).drained) == "a"


def test_a_subset_is_complete_while_no_replacement_is_awaited(
    pool: Pool[FakeNode],
) -> None:
    all_ready(pool, 0.0)
    assert pool.is_complete(0.0)
    pool.observe(node(pool, "c"), State.LAME_DUCK, 5.0)
    pool.review(5.0)
    pool.observe(node(pool, "c"), State.READY, 5.5)
    assert not pool.is_complete(5.5)  # d connects
    assert pool.is_complete(6.0)  # d is out


def test_a_drained_node_changes_nothing_any_more(pool: Pool[FakeNode]) -> None:
    all_ready(pool, 0.0)
    left = node(pool, "a")
    left.load.begin()
    left.load.begin()
    pool.reconcile(endpoints(*"bcdef"), 1.0)
    pool.observe(node(pool, "d"), State.READY, 1.0)
    assert pool.review(1.0).drained == (left,)
    assert pool.review_at(1.0) is None
    left.load.finish(SERVED, 2.0)
    assert pool.full() == 0
    pool.observe(left, State.REFUSING, 5.0)
    assert pool.review_at(5.0) is None
    assert repr(pool) == "3 of 3 backends ready"
    assert addresses(pool.ready) == "bcd"


def test_a_report_is_of_the_time_in_which_it_came(pool: Pool[FakeNode]) -> None:
    for name, state in (("a", State.CONNECTING), ("b", State.READY)):
        pool.observe(node(pool, name), state, 0.0)
        node(pool, name).load.observe(LoadReport(0.5), 0.0)
        pool.observe(node(pool, name), State.LAME_DUCK, 1.0)
    assert node(pool, "a").load.report is not None  # it never was another task's
    assert node(pool, "b").load.report is None


def test_the_workers_of_the_only_task_may_have_all_connections() -> None:
    limits = Limits(3, 2, 1.0, 10.0, 0, max_connections=4)
    workers = tuple(Endpoint(f"a:{port}") for port in range(2, 9))
    pool = Pool(make, lambda all_: all_, limits, expand=lambda _: workers)
    pool.reconcile(endpoints("a"), 0.0)
    assert list(pool.nodes) == ["a:2", "a:3", "a:4", "a:5"]
    assert len(few(Endpoint("a:1"), workers[:2], 1)) == 1


def test_who_reads_from_another_thread_sees_the_same(pool: Pool[FakeNode]) -> None:
    assert pool.read_ready() == ()
    pool.observe(node(pool, "b"), State.LAME_DUCK, 0.0)
    assert addresses(pool.read_ready()) == "b"
    pool.observe(node(pool, "a"), State.READY, 0.0)
    assert addresses(pool.read_ready()) == "a"
    assert pool.read_ready() == pool.ready


def test_its_size_may_change(pool: Pool[FakeNode]) -> None:
    assert addresses(pool.resize(4, 0.0).opened) == "d"
    assert pool.subset_size() == 4


def test_guests_have_nodes_beyond_the_subset_as_far_as_there_is_room() -> None:
    limits = Limits(3, 2, 1.0, 10.0, 0, max_connections=5)
    pool = Pool(make, lambda all_: all_, limits)
    pool.reconcile(endpoints("a", "b", "c", "d", "e", "f", "g"), 0.0)
    change = pool.invite(["f:1", "a:1", "gone:1", "e:1", "g:1"], 0.0)
    assert [n.endpoint.address for n in change.opened] == ["f:1", "e:1"]
    assert list(pool.nodes) == ["a:1", "b:1", "c:1", "f:1", "e:1"]
    assert (len(pool.guests), pool.replacements()) == (2, 0)
    assert pool.review(0.0) == ((), ())
    change = pool.reconcile(endpoints("a", "b", "c", "e", "g"), 0.0)
    assert [n.endpoint.address for n in change.opened] == ["g:1"]
    assert [n.endpoint.address for n in change.drained] == ["f:1"]
    change = pool.invite([], 0.0)
    assert [n.endpoint.address for n in change.drained] == ["e:1", "g:1"]
    assert not pool.guests


def test_a_full_pool_has_no_guests() -> None:
    limits = Limits(3, 2, 1.0, 10.0, 0, max_connections=3)
    pool = Pool(make, lambda all_: all_, limits)
    pool.reconcile(endpoints("a", "b", "c", "d"), 0.0)
    assert pool.invite(["d:1"], 0.0) == ((), ())


def test_a_guest_is_no_replacement_and_stays_as_what_it_is() -> None:
    limits = Limits(3, 2, 1.0, 10.0, 2, max_connections=5)
    pool = Pool(make, lambda all_: all_, limits)
    pool.reconcile(endpoints("a", "b", "c", "d", "e"), 0.0)
    pool.invite(["d:1"], 0.0)
    for one in pool.nodes.values():
        pool.observe(one, State.READY, 0.0)
    pool.review(0.5)
    assert (list(pool.guests), pool.replacements()) == (["d:1"], 0)
    guest = node(pool, "d")
    pool.observe(node(pool, "a"), State.CONNECTING, 20.0)
    pool.review(21.5)
    assert set(pool.nodes) == {"a:1", "b:1", "c:1", "d:1"}
    pool.observe(node(pool, "a"), State.READY, 22.0)
    pool.review(40.0)
    assert node(pool, "d") is guest
    assert (len(pool.guests), pool.replacements()) == (1, 0)


def test_guests_are_no_part_of_a_complete_subset() -> None:
    limits = Limits(2, 2, 1.0, 10.0, 0, max_connections=4)
    pool = Pool(make, lambda all_: all_, limits)
    pool.reconcile(endpoints("a", "b", "c", "d"), 0.0)
    pool.invite(["c:1", "d:1"], 0.0)
    for name in "acd":
        pool.observe(node(pool, name), State.READY, 1.0)
    assert not pool.is_complete(1.0)
    assert pool.connected_since(0.5) == 1
    pool.observe(node(pool, "b"), State.READY, 1.0)
    pool.observe(node(pool, "c"), State.CONNECTING, 1.0)
    assert pool.is_complete(1.0)
    assert pool.connected_since(0.5) == 2
