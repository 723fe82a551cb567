"""Which endpoints stand for a task of several workers."""

from dataclasses import replace

import pytest

from lbclient.core.backends.pool import Limits, Pool, few
from lbclient.core.backends.task_workers import (
    MOST_DIALS,
    REFUSED_AFTER,
    RETRIES,
    SILENT_AFTER,
    Landing,
    TaskWorkers,
    ToldWorkers,
)
from lbclient.core.model import Endpoint, State
from lbclient.testing import FakeNode

SHARED = "10.0.0.1:50051"
TASK = Endpoint(SHARED, weight=3.0, zone="a", task=4)
GROUP, OTHER = 7, 8


def told(*own: int, group: int = GROUP) -> ToldWorkers:
    return ToldWorkers(group, ((50051, own),))


def addresses(workers: TaskWorkers) -> list[str]:
    return [each.address for each in workers.expand(TASK)]


@pytest.fixture
def workers() -> TaskWorkers:
    """Of a task with two workers, both of which were reached."""
    known = TaskWorkers()
    known.learn(SHARED, told(1, 2), 0.0)
    known.reached("10.0.0.1:1")
    return known


def test_the_shared_address_stays_until_a_worker_is_reached() -> None:
    known = TaskWorkers()
    assert addresses(known) == [SHARED]
    assert known.learn(SHARED, told(1, 2), 0.0)
    assert addresses(known) == [SHARED, "10.0.0.1:1", "10.0.0.1:2"]
    assert known.reached("10.0.0.1:2")
    assert not known.reached("10.0.0.1:1")  # no news
    assert addresses(known) == ["10.0.0.1:1", "10.0.0.1:2"]


def test_a_worker_has_its_share_of_the_weight_and_all_else_of_the_task(
    workers: TaskWorkers,
) -> None:
    one, other = workers.expand(TASK)
    assert one == replace(
        TASK, address="10.0.0.1:1", weight=TASK.weight / 2, task_weight=TASK.weight
    )
    assert other.weight == 1.5
    assert workers.task_of(one.address) == SHARED
    assert workers.task_of("10.0.0.9:1") == "10.0.0.9:1"


def test_each_worker_tells_of_all(workers: TaskWorkers) -> None:
    assert not workers.learn("10.0.0.1:2", told(1, 2), 1.0)
    assert workers.learn("10.0.0.1:2", told(0, 2), 1.0)
    assert addresses(workers) == ["10.0.0.1:2"]
    assert workers.learn("10.0.0.1:2", told(3, 2), 1.0)
    assert addresses(workers) == ["10.0.0.1:3", "10.0.0.1:2"]


def test_who_tells_of_no_port_changes_nothing(workers: TaskWorkers) -> None:
    assert not workers.learn("10.0.0.1:2", told(0, 0), 1.0)
    assert not workers.learn("10.0.0.1:2", ToldWorkers(GROUP, ()), 1.0)
    assert len(addresses(workers)) == 2


def test_a_stranger_at_an_own_port_is_no_worker(workers: TaskWorkers) -> None:
    assert workers.is_stranger("10.0.0.1:1", OTHER)
    assert workers.is_stranger("10.0.0.1:1", 0)
    assert not workers.is_stranger("10.0.0.1:1", GROUP)
    assert not workers.is_stranger(SHARED, OTHER)  # anybody may answer there
    assert not workers.learn("10.0.0.1:1", told(9, group=OTHER), 1.0)


@pytest.mark.parametrize(
    "address",
    [
        "unix:/run/search",
        "unix:50051",
        "unix-abstract:7",
        "search.prod",
        "search.prod:grpc",
    ],
)
def test_there_are_no_ports_beside_what_has_none(address: str) -> None:
    known = TaskWorkers()
    assert not known.learn(address, told(1, 2), 0.0)
    assert known.expand(Endpoint(address)) == (Endpoint(address),)


def test_no_task_has_the_address_of_another_one_for_a_worker() -> None:
    known = TaskWorkers()
    known.keep((TASK, Endpoint("10.0.0.1:2")))
    assert known.learn(SHARED, told(1, 2), 0.0)
    assert known.reached("10.0.0.1:1")
    assert addresses(known) == ["10.0.0.1:1"]
    assert known.task_of("10.0.0.1:2") == "10.0.0.1:2"
    known.keep((TASK, Endpoint("10.0.0.1:1")))
    assert addresses(known) == ["10.0.0.1:2"]
    known.keep((TASK, Endpoint("10.0.0.1:1"), Endpoint("10.0.0.1:2")))
    assert addresses(known) == [SHARED]


def test_a_new_task_at_the_shared_address_takes_the_place_of_the_old(
    workers: TaskWorkers,
) -> None:
    assert workers.learn(SHARED, told(5, group=OTHER), 1.0)
    assert addresses(workers) == [SHARED, "10.0.0.1:5"]


@pytest.mark.parametrize(
    ("state", "after"),
    [(State.REFUSING, REFUSED_AFTER), (State.CONNECTING, SILENT_AFTER)],
)
def test_own_ports_that_are_not_reached_are_given_up_for_a_while(
    state: State, after: float
) -> None:
    known = TaskWorkers()
    known.learn(SHARED, told(1), 0.0)
    states = {SHARED: State.READY, "10.0.0.1:1": state}
    assert known.review(states.get, after - 0.1) == (False, [])
    assert known.review(states.get, after) == (True, [SHARED])
    assert addresses(known) == [SHARED]
    assert known.counts() == (0, 1, 1)
    again = after + RETRIES.after(1)
    assert known.review_in(again - 1.0) == pytest.approx(1.0)
    assert known.review({SHARED: State.READY}.get, again) == (True, [])
    assert addresses(known) == [SHARED, "10.0.0.1:1"]


def given_up(*own: int) -> TaskWorkers:
    """A task whose own ports cannot be reached, and its shared one can."""
    known = TaskWorkers()
    known.learn(SHARED, told(*own), 0.0)
    assert known.review(only_shared, SILENT_AFTER) == (True, [SHARED])
    return known


def only_shared(address: str) -> State:
    return State.READY if address.startswith(SHARED) else State.REFUSING


def numbered(*numbers: int) -> list[str]:
    return [SHARED, *(f"{SHARED}#{n}" for n in numbers)]


def test_a_task_that_is_given_up_has_a_connection_for_each_worker() -> None:
    known = given_up(1, 0, 3, 4)
    first, *_ = endpoints = known.expand(TASK)
    assert [each.address for each in endpoints] == numbered(2, 3)
    assert first.weight == TASK.weight / 3
    assert {each.task_weight for each in endpoints} == {TASK.weight}
    assert known.counts() == (0, 1, 3)
    assert {known.task_of(each.address) for each in endpoints} == {SHARED}


def test_connections_go_on_while_own_ports_are_tried_again() -> None:
    known = given_up(1, 2)
    known.review(only_shared, SILENT_AFTER + RETRIES.after(1))
    assert addresses(known) == [*numbered(2), "10.0.0.1:1", "10.0.0.1:2"]
    task = known.expand(TASK)
    assert [each.address for each in few(TASK, task, 1)] == [SHARED, "10.0.0.1:1"]
    assert not known.reached(f"{SHARED}#2")
    assert known.reached("10.0.0.1:1")
    assert addresses(known) == ["10.0.0.1:1", "10.0.0.1:2"]


def test_a_connection_that_lands_where_another_one_is_is_made_again() -> None:
    known = given_up(1, 2)
    at = {SHARED: 11}
    second = f"{SHARED}#2"

    def worker_at(address: str) -> int:
        return at.get(address, 0)

    assert known.lands(second, 11, worker_at) is Landing.AGAIN
    assert known.lands(second, 0, worker_at) is Landing.ALONE  # not known yet
    assert known.lands(second, 12, worker_at) is Landing.ALONE
    at[second] = 12
    assert known.lands(SHARED, 12, worker_at) is Landing.AGAIN  # made anew


def test_a_connection_is_dropped_after_it_was_made_again_too_often() -> None:
    known = given_up(1, 2)
    second = f"{SHARED}#2"
    for _ in range(2 * MOST_DIALS):
        assert known.lands(second, 11, lambda _: 11) is Landing.AGAIN
    assert known.lands(second, 11, lambda _: 11) is Landing.DROPPED
    assert known.lands(second, 11, lambda _: 11) is Landing.LEAVING
    assert addresses(known) == [SHARED]
    # Other workers are another chance.
    assert known.learn(SHARED, told(1, 7), 9.0)
    assert addresses(known) == numbered(2)
    assert known.lands(second, 11, lambda _: 11) is Landing.AGAIN


def test_the_first_connection_is_kept_in_place_of_one_that_has_its_worker() -> None:
    known = given_up(1, 2)
    for _ in range(2 * MOST_DIALS):
        known.lands(SHARED, 11, lambda _: 11)
    assert known.lands(SHARED, 11, lambda _: 11) is Landing.ALONE
    assert addresses(known) == [SHARED]


def test_reconnects_that_find_their_workers_may_go_on_for_ever() -> None:
    known = given_up(1, 2)
    second = f"{SHARED}#2"
    at = {SHARED: 11, second: 12}
    for _ in range(10):
        for _ in range(2 * MOST_DIALS - 1):
            landing = known.lands(second, 11, lambda address: at[address])
            assert landing is Landing.AGAIN
        assert known.lands(second, 12, lambda address: at[address]) is Landing.ALONE
    assert addresses(known) == numbered(2)


def test_nothing_is_tried_while_nobody_calls() -> None:
    """A channel that rests has its connections no more."""
    known, now = given_up(1, 2), SILENT_AFTER
    states = {SHARED: State.INACTIVE, f"{SHARED}#2": State.INACTIVE}
    looks = 0
    while now < 3600.0:
        assert known.review(states.get, now) == (False, [])
        now += known.review_in(now) or 0.0
        looks += 1
    assert looks <= 3600.0 / RETRIES.first + 1
    states[SHARED] = State.READY
    assert known.review(states.get, now + RETRIES.first) == (True, [])
    assert "10.0.0.1:1" in addresses(known)


def test_own_ports_are_given_up_also_by_a_channel_that_begins_to_rest() -> None:
    known = TaskWorkers()
    known.learn(SHARED, told(1), 0.0)
    states = {SHARED: State.READY, "10.0.0.1:1": State.CONNECTING}
    known.review(states.get, 0.5)
    states[SHARED] = State.INACTIVE
    assert known.review(states.get, SILENT_AFTER) == (True, [SHARED])


def test_a_dropped_connection_is_tried_again_after_longer_and_longer_pauses() -> None:
    known, second, now = TaskWorkers(), f"{SHARED}#2", 0.0
    known.learn(SHARED, ToldWorkers(GROUP, (), 2), now)
    for pause in (RETRIES.after(1), RETRIES.after(2)):
        while known.lands(second, 11, lambda _: 11) is not Landing.DROPPED:
            pass
        assert known.review(only_shared, now) == (False, [])
        assert known.review_in(now) == pause
        assert known.review(only_shared, now + pause - 1.0) == (False, [])
        assert addresses(known) == [SHARED]
        now += pause
        assert known.review(only_shared, now) == (True, [])
        assert addresses(known) == numbered(2)


def test_with_fewer_workers_the_connection_without_one_goes() -> None:
    known = given_up(1, 2, 3)
    has_one = {SHARED: 11, f"{SHARED}#3": 13}
    known.learn(SHARED, told(1, 0, 3), 9.0, lambda address: has_one.get(address, 0))
    assert addresses(known) == numbered(3)


def test_another_task_at_the_address_is_not_tried_for_long_again() -> None:
    """Several pods behind a virtual address."""
    known = given_up(1, 2)
    assert known.learn(SHARED, told(5, 6, 7, group=OTHER), 9.0)
    assert addresses(known) == numbered(2, 3)
    assert not known.learn(f"{SHARED}#2", told(1, 2), 9.0)
    assert known.review_in(9.0) is not None


def test_a_task_that_has_no_workers_any_more_is_one_backend() -> None:
    known = given_up(1, 2)
    assert known.has_none(f"{SHARED}#2")
    assert addresses(known) == [SHARED]
    assert not known.has_none(SHARED)


def test_workers_without_own_ports_have_a_connection_each() -> None:
    """LBCLIENT_WORKER_PORTS=off: there is nothing to try."""
    known = TaskWorkers()
    assert not known.learn(SHARED, ToldWorkers(GROUP, (), 1), 0.0)
    assert known.learn(SHARED, ToldWorkers(GROUP, (), 3), 0.0)
    assert addresses(known) == numbered(2, 3)
    assert known.counts() == (0, 1, 3)
    assert known.review_in(0.0) is None
    assert known.review(only_shared, 1e9) == (False, [])
    known.keep((TASK,))
    assert not known.learn(f"{SHARED}#2", ToldWorkers(GROUP, (), 3), 0.0)
    assert not known.learn(f"{SHARED}#2", ToldWorkers(OTHER, (), 2), 0.0)
    assert known.learn(f"{SHARED}#2", ToldWorkers(GROUP, (), 2), 0.0)
    assert len(addresses(known)) == 2


def test_of_two_workers_without_own_ports_one_may_be_gone_for_a_while() -> None:
    """A connection that must land at the same one again and again is not given up for
    the next worker, too."""
    known = TaskWorkers()
    assert known.learn(SHARED, ToldWorkers(GROUP, (), 2), 0.0)
    assert known.learn(SHARED, ToldWorkers(GROUP, (), 1), 0.0)
    assert addresses(known) == [SHARED]
    assert not known.learn(SHARED, ToldWorkers(GROUP, (), 0), 0.0)  # all leave
    assert known.learn(SHARED, ToldWorkers(GROUP, (), 2), 0.0)
    assert addresses(known) == numbered(2)


def test_who_is_at_an_own_port_is_no_task_of_its_own(workers: TaskWorkers) -> None:
    assert not workers.learn("10.0.0.1:1", ToldWorkers(OTHER, (), 3), 1.0)
    assert workers.counts() == (1, 0, 0)


def test_what_is_at_an_own_port_does_not_speak_for_the_task(
    workers: TaskWorkers,
) -> None:
    assert not workers.has_none("10.0.0.1:1")
    assert not workers.has_none(SHARED)
    assert len(addresses(workers)) == 2


def test_a_task_that_is_gone_is_not_given_up() -> None:
    """Its shared port does not answer either."""
    known = TaskWorkers()
    known.learn(SHARED, told(1), 0.0)
    states = {SHARED: State.REFUSING, "10.0.0.1:1": State.REFUSING}
    assert known.review(states.get, 100.0) == (False, [])


def test_own_ports_are_tried_as_long_as_ever_after_all_workers_restart() -> None:
    known = TaskWorkers()
    known.learn(SHARED, told(1), 0.0)
    states = {SHARED: State.REFUSING, "10.0.0.1:1": State.REFUSING}
    known.review(states.get, 100.0)
    states[SHARED] = State.READY
    assert known.review(states.get, 100.0 + REFUSED_AFTER - 0.1) == (False, [])
    known.learn(SHARED, told(2), 100.4)
    states["10.0.0.1:2"] = State.REFUSING
    assert known.review(states.get, 100.4 + REFUSED_AFTER - 0.1) == (False, [])
    assert known.review(states.get, 100.4 + REFUSED_AFTER) == (True, [SHARED])


def test_the_shared_address_comes_back_when_all_workers_are_lost(
    workers: TaskWorkers,
) -> None:
    states = {"10.0.0.1:1": State.REFUSING, "10.0.0.1:2": State.READY}
    assert workers.review(states.get, 1.0) == (False, [])
    states["10.0.0.1:2"] = State.CONNECTING
    assert workers.review(states.get, 1.0) == (True, [])
    assert addresses(workers) == [SHARED, "10.0.0.1:1", "10.0.0.1:2"]


def test_tasks_that_the_resolver_forgets_are_forgotten(workers: TaskWorkers) -> None:
    workers.keep((Endpoint("10.0.0.9:50051"),))
    assert repr(workers) == "<0 tasks, 0 by own ports, 0 not>"


def test_a_subset_counts_tasks_and_has_all_of_their_workers() -> None:
    known = TaskWorkers()
    limits = Limits(1, 100, 1.0, 10.0, max_replacements=1)
    pool: Pool[FakeNode] = Pool(
        lambda endpoint: FakeNode(endpoint, State.CONNECTING),
        lambda all_: all_,
        limits,
        expand=known.expand,
    )
    pool.reconcile((TASK, Endpoint("10.0.0.2:50051")), 0.0)
    pool.observe(pool.nodes[SHARED], State.READY, 0.0)
    known.learn(SHARED, told(1, 2), 0.0)
    known.reached("10.0.0.1:1")
    pool.reconcile(pool.endpoints, 0.0)
    # Until they are ready the shared connection stays.
    assert [*pool.nodes] == ["10.0.0.1:1", "10.0.0.1:2", SHARED]
    assert (pool.tasks(), pool.subset_size(), pool.choices) == (1, 2, 3)
    assert pool.task_of("10.0.0.1:2") == SHARED
    for worker in list(pool.nodes.values()):
        pool.observe(worker, State.READY, 1.0)
    pool.review(1.0)
    assert [*pool.nodes] == ["10.0.0.1:1", "10.0.0.1:2"]
    # A worker that is out is replaced, as any backend is.
    pool.observe(pool.nodes["10.0.0.1:1"], State.LAME_DUCK, 2.0)
    pool.review(2.0)
    assert [*pool.nodes][2:] == ["10.0.0.2:50051"]


def lands_at(known: TaskWorkers, address: str, at: dict[str, int]) -> Landing:
    return known.lands(address, at[address], lambda one: at.get(one, 0))


def test_once_each_connection_has_its_worker_dials_are_counted_anew() -> None:
    known = TaskWorkers()
    known.learn(SHARED, ToldWorkers(GROUP, (), 2), 0.0)
    second = f"{SHARED}#2"
    for _ in range(2):
        for _ in range(2 * MOST_DIALS):
            assert lands_at(known, second, {SHARED: 1, second: 1}) is Landing.AGAIN
        assert lands_at(known, second, {SHARED: 1, second: 2}) is Landing.ALONE


def test_dials_go_on_being_counted_while_one_has_no_worker_of_its_own() -> None:
    known = TaskWorkers()
    known.learn(SHARED, ToldWorkers(GROUP, (), 3), 0.0)
    second, third = numbered(2, 3)[1:]
    for _ in range(3 * MOST_DIALS):
        assert lands_at(known, third, {SHARED: 1, third: 1}) is Landing.AGAIN
        assert lands_at(known, second, {SHARED: 1, second: 2, third: 0}) is (
            Landing.ALONE
        )
    assert lands_at(known, third, {SHARED: 1, third: 1}) is Landing.DROPPED


def test_a_dropped_connection_is_tried_after_the_first_pause_once_all_was_well() -> (
    None
):
    known = TaskWorkers()
    known.learn(SHARED, ToldWorkers(GROUP, (), 2), 0.0)
    second, now = f"{SHARED}#2", 0.0
    for number, is_well in ((1, False), (2, True), (1, False)):
        for _ in range(2 * MOST_DIALS):
            lands_at(known, second, {SHARED: 1, second: 1})
        assert lands_at(known, second, {SHARED: 1, second: 1}) is Landing.DROPPED
        known.review(only_shared, now)
        assert known.review_in(now) == pytest.approx(RETRIES.after(number))
        now += RETRIES.after(number)
        assert known.review(only_shared, now) == (True, [])
        if is_well:
            assert lands_at(known, second, {SHARED: 1, second: 2}) is Landing.ALONE


def test_a_worker_is_missed_once_while_others_of_its_task_are_ready(
    workers: TaskWorkers,
) -> None:
    gone, other = "10.0.0.1:1", "10.0.0.1:2"
    for state in (State.LAME_DUCK, State.STARTING, State.INACTIVE, None):
        states = {gone: state, other: State.READY}
        assert workers.missed(states.get, 0.0) == []
        assert workers.missed(states.get, SILENT_AFTER) == []
    states = {gone: State.REFUSING, other: State.CONNECTING}
    assert workers.missed(states.get, 0.0) == []
    assert workers.missed(states.get, SILENT_AFTER) == []
    states[other] = State.READY
    assert workers.missed(states.get, 10.0) == []
    assert workers.missed(states.get, 10.0 + SILENT_AFTER) == [gone]
    assert workers.missed(states.get, 30.0) == []


def test_a_new_task_is_tried_after_the_first_pause_as_the_old_one_was() -> None:
    known = given_up(1, 2)
    assert known.learn(SHARED, told(3, 4, group=OTHER), 100.0)
    first = SILENT_AFTER + RETRIES.after(1)
    assert known.review_in(10.0) == pytest.approx(first - 10.0)
    assert addresses(known) == numbered(2)


def test_connections_to_a_shared_port_have_equal_parts_of_the_weight() -> None:
    for count in (2, 3):
        known = TaskWorkers()
        known.learn(SHARED, ToldWorkers(GROUP, (), count), 0.0)
        weights = [each.weight for each in known.expand(TASK)]
        assert weights == [TASK.weight / count] * count


def test_a_new_task_without_own_ports_takes_the_place_of_the_old() -> None:
    known = TaskWorkers()
    known.learn(SHARED, ToldWorkers(GROUP, (), 2), 0.0)
    assert known.learn(SHARED, ToldWorkers(OTHER, (), 3), 1.0)
    assert addresses(known) == numbered(2, 3)


def test_without_own_ports_the_connection_without_a_worker_goes_first() -> None:
    known = TaskWorkers()
    known.learn(SHARED, ToldWorkers(GROUP, (), 3), 0.0)
    has_one = {SHARED: 11, f"{SHARED}#3": 13}
    known.learn(SHARED, ToldWorkers(GROUP, (), 2), 1.0, lambda one: has_one.get(one, 0))
    assert addresses(known) == numbered(3)


def test_the_only_connection_with_a_worker_stays_until_the_first_has_one() -> None:
    known, second = TaskWorkers(), f"{SHARED}#2"
    known.learn(SHARED, ToldWorkers(GROUP, (), 2), 0.0)
    at = {second: 12}  # the worker at the first one was killed
    known.learn(second, ToldWorkers(GROUP, (), 1), 1.0, lambda one: at.get(one, 0))
    assert addresses(known) == numbered(2)
    at[SHARED] = 12
    assert lands_at(known, SHARED, at) is Landing.ALONE
    assert addresses(known) == [SHARED]


def test_a_connection_beside_all_workers_is_dropped_where_it_lands() -> None:
    known, second = TaskWorkers(), f"{SHARED}#2"
    known.learn(SHARED, ToldWorkers(GROUP, (), 2), 0.0)
    at = {second: 12}
    known.learn(second, ToldWorkers(GROUP, (), 1), 1.0, lambda one: at.get(one, 0))
    at[SHARED] = 12
    assert lands_at(known, second, at) is Landing.DROPPED
    assert addresses(known) == [SHARED]


def test_while_own_ports_are_tried_there_is_one_connection_to_the_shared_one() -> None:
    known = TaskWorkers()
    known.learn(SHARED, told(1, 2), 0.0)
    assert known.learn(SHARED, told(1, 3), 1.0)
    assert addresses(known) == [SHARED, "10.0.0.1:1", "10.0.0.1:3"]


def test_where_all_is_well_nothing_is_tried_again() -> None:
    known = TaskWorkers()
    known.learn(SHARED, ToldWorkers(GROUP, (), 2), 0.0)
    for now in (10.0, 100.0):
        assert known.review(only_shared, now) == (False, [])
        assert known.review_in(now) is None


def test_dropped_connections_rest_while_nobody_calls() -> None:
    known, second = TaskWorkers(), f"{SHARED}#2"
    known.learn(SHARED, ToldWorkers(GROUP, (), 2), 0.0)
    while known.lands(second, 11, lambda _: 11) is not Landing.DROPPED:
        pass
    known.review(only_shared, 0.0)
    due = RETRIES.after(1)
    assert known.review({SHARED: State.INACTIVE}.get, due) == (False, [])
    assert known.review_in(due) == pytest.approx(RETRIES.first)


def test_who_is_no_connection_of_a_known_task_lands_alone(workers: TaskWorkers) -> None:
    assert workers.lands("10.0.0.9:1", 11, lambda _: 11) is Landing.ALONE
    assert workers.lands(SHARED, 11, lambda _: 11) is Landing.ALONE  # it is reached
    known = given_up(1, 2)
    assert known.lands(f"{SHARED}#2", 0, lambda _: 0) is Landing.ALONE  # not told yet


def test_while_one_is_dropped_the_others_do_not_shorten_its_pause() -> None:
    known, third = TaskWorkers(), f"{SHARED}#3"
    known.learn(SHARED, ToldWorkers(GROUP, (), 3), 0.0)
    second, now = f"{SHARED}#2", 0.0
    for number in (1, 2):
        at = {SHARED: 11, second: 12, third: 11}
        while lands_at(known, third, at) is not Landing.DROPPED:
            pass
        assert lands_at(known, second, at) is Landing.ALONE
        known.review(only_shared, now)
        assert known.review_in(now) == pytest.approx(RETRIES.after(number))
        now += RETRIES.after(number)
        assert known.review(only_shared, now) == (True, [])


def test_a_new_task_does_not_wait_for_the_long_pause_of_the_old_one() -> None:
    known, now = given_up(1, 2), SILENT_AFTER
    for number in (2, 3):
        now += RETRIES.after(number - 1)
        assert known.review(only_shared, now) == (True, [])
        now += SILENT_AFTER
        assert known.review(only_shared, now) == (True, [SHARED])
    assert known.learn(SHARED, told(3, 4, group=OTHER), now)
    assert known.review_in(now) == pytest.approx(RETRIES.after(1))
    now += RETRIES.after(1)
    assert known.review(only_shared, now) == (True, [])
    now += SILENT_AFTER
    assert known.review(only_shared, now) == (True, [SHARED])
    assert known.review_in(now) == pytest.approx(RETRIES.after(2))


def test_a_task_that_was_reached_begins_anew_when_it_is_not() -> None:
    known = given_up(1, 2)
    now = SILENT_AFTER + RETRIES.after(1)
    assert known.review(only_shared, now) == (True, [])
    assert known.reached("10.0.0.1:1")
    assert known.learn("10.0.0.1:1", told(1, 3), now)
    assert known.review(only_shared, now) == (True, [])
    assert addresses(known) == [SHARED, "10.0.0.1:1", "10.0.0.1:3"]


def test_ports_that_nobody_was_to_connect_to_are_not_given_up() -> None:
    known = TaskWorkers()
    known.learn(SHARED, told(1, 2), 0.0)
    assert known.review({SHARED: State.READY}.get, 2 * SILENT_AFTER) == (False, [])
