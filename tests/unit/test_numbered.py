"""Which algorithm a channel uses, on which numbers, and what it says of that."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest

from lbclient.core.errors import ConfigError
from lbclient.core.model import Endpoint, Endpoints, Identity, snapshot
from lbclient.subsets import ALGORITHMS, Rendezvous, job_offset, subset
from lbclient.subsets.numbered import (
    AUTO,
    MOST_HOLES,
    SOME_HOLES,
    Choice,
    Numbering,
    number,
    with_tasks,
)
from lbclient.subsets.rocksteadier import LOT
from lbclient.subsets.workers import by_chance, by_turns

SEVENTH = Identity(7, "LBCLIENT_TASK_INDEX=7")
NOBODY = Identity(None)
SIZE = 4
GO_BY_PLACE = sorted(set(ALGORITHMS) - {"rendezvous", "whole"})
NEED_A_NUMBER = sorted(set(ALGORITHMS) - {"rendezvous", "whole", "random"})


def choice(name: str = AUTO, identity: Identity = SEVENTH, job: str = "") -> Choice:
    return Choice(name, SIZE, identity, "me", job)


def tasks(*numbers: int) -> Endpoints:
    """Endpoints whose numbers the resolver knows, and whose addresses hide them."""
    return snapshot([Endpoint(f"10.0.{n * 37 % 101}.1:1", task=n) for n in numbers])


def names(*addresses: str) -> Endpoints:
    return snapshot([Endpoint(address) for address in addresses])


def numbers_of(order: Any) -> list[int | None]:
    return [endpoint.task for endpoint in order]


IPS = names("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")

# --- the choice --------------------------------------------------------------------


def test_auto_is_rocksteadier_where_both_sides_have_numbers() -> None:
    subset_of = choice()
    assert numbers_of(subset_of(tasks(*range(60)))) == subset("rocksteadier", 7, 60, 60)
    assert repr(subset_of) == (
        "rocksteadier as client 7 (LBCLIENT_TASK_INDEX=7) of 60 numbered backends"
    )
    assert not subset_of.is_random


def test_one_backend_is_told_of_as_one() -> None:
    assert str(number(tasks(0))) == "1 numbered backend"
    assert str(number(names("10.0.0.1:1"))).startswith(
        "1 backend numbered by position: "
    )


def test_auto_is_rendezvous_where_backends_have_no_numbers() -> None:
    subset_of = choice()
    assert list(subset_of(IPS)) == list(Rendezvous("me")(IPS))
    said = "rendezvous as client 'me': backends have no task numbers"
    assert repr(subset_of) == said
    assert subset_of.is_random


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "the client has no task number"),
        (
            "hostname 'web-x7f2q' has no ordinal",
            "the client has no task number (hostname 'web-x7f2q' has no ordinal)",
        ),
    ],
)
def test_auto_is_rendezvous_where_the_client_has_no_number(
    source: str, said: str
) -> None:
    subset_of = choice(identity=Identity(None, source))
    backends = tasks(*range(60))
    assert list(subset_of(backends)) == list(Rendezvous("me")(backends))
    assert repr(subset_of) == f"rendezvous as client 'me': {said}"


def test_auto_chooses_anew_for_each_snapshot() -> None:
    subset_of = choice()
    before = subset_of(tasks(0, 1, 2))
    assert list(subset_of(IPS)) == list(Rendezvous("me")(IPS))
    assert repr(subset_of).startswith("rendezvous")
    assert numbers_of(before) == subset("rocksteadier", 7, 3, 3), (
        "an order stays as it began"
    )
    subset_of(tasks(0, 1, 2))
    assert repr(subset_of).startswith("rocksteadier")


def test_an_empty_answer_has_no_order_and_changes_no_choice() -> None:
    subset_of = choice()
    assert list(subset_of(())) == []
    assert repr(subset_of) == "auto, no endpoints yet"
    subset_of(IPS)
    before = repr(subset_of)
    assert list(subset_of(())) == []
    assert repr(subset_of) == before


@pytest.mark.parametrize("name", GO_BY_PLACE)
def test_an_algorithm_that_is_named_is_used(name: str) -> None:
    subset_of = choice(name)
    assert numbers_of(subset_of(tasks(*range(12)))) == list(
        ALGORITHMS[name](7, 12, SIZE)
    )
    said = "as client 7 (LBCLIENT_TASK_INDEX=7) of 12 numbered backends"
    assert repr(subset_of) == f"{name} {said}"
    assert not subset_of.goes_by_place


@pytest.mark.parametrize("name", GO_BY_PLACE)
def test_an_algorithm_that_is_named_goes_by_place_where_it_must(name: str) -> None:
    subset_of = choice(name)
    places = [IPS.index(endpoint) for endpoint in subset_of(IPS)]
    assert places == list(ALGORITHMS[name](7, len(IPS), SIZE))
    assert subset_of.goes_by_place
    assert repr(subset_of).endswith(
        "of 3 backends numbered by position: backends have no task numbers"
        "; each that comes or goes moves others"
    )
    subset_of(tasks(0, 1, 2))
    assert not subset_of.goes_by_place


def test_rendezvous_by_name_looks_for_no_numbers() -> None:
    subset_of = choice("rendezvous")
    backends = tasks(*range(60))
    assert list(subset_of(backends)) == list(Rendezvous("me")(backends))
    assert repr(subset_of) == "rendezvous as client 'me'"
    assert not subset_of.goes_by_place
    assert not subset_of.is_random  # it is to stay as it is


def test_whole_loses_nothing_by_going_by_place() -> None:
    subset_of = choice("whole")
    assert sorted(subset_of(IPS)) == list(IPS)
    assert not subset_of.goes_by_place
    assert "moves others" not in repr(subset_of)


@pytest.mark.parametrize("name", NEED_A_NUMBER)
def test_a_client_without_a_number_is_told_what_to_set(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choice(name, Identity(None, "JOB_COMPLETION_INDEX='x' is no whole number"))
    assert (caught.value.field, caught.value.value) == ("task_index", None)
    for word in (name, "LBCLIENT_TASK_INDEX", "0 or more", "JOB_COMPLETION_INDEX='x'"):
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["random", "whole"])
def test_any_number_will_do_for_some(name: str) -> None:
    backends = tasks(*range(60))
    orders = {
        tuple(Choice(name, SIZE, NOBODY, f"client {i}", "")(backends))
        for i in range(20)
    }
    assert len(orders) > 10, "clients differ"
    ours = choice(name, NOBODY)
    assert list(ours(backends)) == list(choice(name, NOBODY)(backends))
    assert repr(ours) == f"{name} as client 'me' of 60 numbered backends"
    assert numbers_of(choice(name)(backends)) == list(ALGORITHMS[name](7, 60, SIZE))


def test_an_id_may_hold_what_is_no_unicode() -> None:
    assert len(list(Choice("random", SIZE, NOBODY, "\udcff", "")(IPS))) == len(IPS)


def test_tasks_of_several_client_jobs_do_not_prefer_the_same() -> None:
    backends = tasks(*range(60))
    web = choice(job="web")
    moved = subset("rocksteadier", 7, 60, 60, offset=job_offset("web"))
    assert numbers_of(web(backends)) == moved != numbers_of(choice()(backends))
    assert "client 7 of 'web' (LBCLIENT_TASK_INDEX=7)" in repr(web)


def test_any_number_is_the_same_in_every_release() -> None:
    order = choice("random", NOBODY)(tasks(*range(60)))
    assert numbers_of(islice(order, 6)) == [27, 13, 7, 33, 25, 38]


def test_the_workers_of_a_task_are_taken_in_turns_where_both_have_numbers() -> None:
    backends = tasks(*range(60))
    web = choice(job="web")
    web(backends)
    client = 7 + LOT * job_offset("web")
    for task in backends:
        assert web.workers(task, 4) == by_turns(client, task.task or 0, 4)
    draw = Rendezvous("me")
    for name, some in (("rocksteadier", IPS), ("ringsteady", backends)):
        other = choice(name)
        other(some)
        for task in some[:3]:
            assert other.workers(task, 4) == by_chance(draw, task, 4)


def test_numbers_are_shown_where_subsets_go_by_them() -> None:
    members = (Endpoint("b-0:1"), Endpoint("b-5:1", task=1))
    shown = with_tasks((*members, *IPS[:1]), members)
    assert [each.task for each in shown] == [0, 1, None]
    assert with_tasks(members, (*members, *IPS)) == members


# --- the numbers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "task"),
    [
        ("backend-7.svc:50051", 7),
        ("search-3:50051", 3),
        ("my-search-12.search.prod.svc.cluster.local:50051", 12),
        ("search-3", 3),
        ("shard-1-0.svc:1", 0),
        ("search-007:1", 7),
        ("10.0.0.3:50051", None),
        ("[fe80::1%25eth-0]:50051", None),
        ("[::1]:50051", None),
        ("unix:/run/search-3", None),
        ("search.rack-7:50051", None),
        ("search-x7f2q:50051", None),
        ("search-1234567890:50051", None),
        ("-7:50051", None),
        ("search-٣:1", None),
    ],
)
def test_a_host_name_may_end_in_its_number(address: str, task: int | None) -> None:
    numbering = number((Endpoint(address),))
    if task is None:
        assert numbering.why_not == "backends have no task numbers"
    else:
        assert numbering.backends.index(Endpoint(address)) == task


@pytest.mark.parametrize(
    "address",
    [
        "ip-10-0-0-3:50051",
        "ip-10-0-0-3.ec2.internal:50051",
        "10-0-0-3.prod.pod.cluster.local:50051",
    ],
)
def test_a_machines_name_ends_in_no_number_of_a_task(address: str) -> None:
    for backends in (names(address), names(address, "search-0:1")):
        why_not = number(backends).why_not
        assert why_not == "the names of backends are those of machines"


def test_the_resolver_knows_better_than_the_name() -> None:
    first, second = Endpoint("b-0:1", task=1), Endpoint("b-1:1", task=0)
    assert number((first, second)).backends == [second, first]


@pytest.mark.parametrize("wrong", [-1, "1", 1.0, True])
def test_a_task_that_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"task = .*: want a whole number") as caught:
        Endpoint("b-1:1", task=wrong)
    assert caught.value.value is wrong


@pytest.mark.parametrize("wrong", [0.0, -1, True, "1", float("nan"), float("inf")])
def test_a_weight_of_a_task_that_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"task_weight = .*: want a number above 0"):
        Endpoint("b-1:1", task=1, task_weight=wrong)


@pytest.mark.parametrize("port", [0, 65536, 99999, 10**30])
def test_a_port_that_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match="a port of 1 to 65535"):
        Endpoint(f"127.0.0.1:{port}")


@pytest.mark.parametrize("wrong", ["", None, 50051])
def test_an_address_that_is_no_text_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"address = .*: want text such as"):
        Endpoint(wrong)


def test_one_backend_without_a_number_is_enough_to_do_without() -> None:
    backends = snapshot([*tasks(*range(9)), Endpoint("10.9.9.9:1")])
    subset_of = choice()
    assert list(subset_of(backends)) == list(Rendezvous("me")(backends))
    said = "rendezvous as client 'me': 1 of 10 backends have no task number"
    assert repr(subset_of) == said


@pytest.mark.parametrize("client", range(10))
def test_a_task_that_is_missing_moves_nobody_else(client: int) -> None:
    all_of_them = subset("rocksteadier", client, 60, 60)
    gone = all_of_them[1:60:20]
    here = tasks(*(n for n in range(60) if n not in gone or n == 59))
    subset_of = choice(identity=Identity(client))
    assert numbers_of(subset_of(here)) == [
        n for n in all_of_them if n not in gone or n == 59
    ]
    missing = 60 - len(here)
    assert f"{len(here)} numbered backends ({missing} missing)" in repr(subset_of)


def test_numbers_may_be_as_sparse_as_the_bound_and_no_more() -> None:
    last = MOST_HOLES * 3 + SOME_HOLES - 1
    assert len(number(tasks(0, 1, last)).backends) == last + 1
    too_sparse = number(tasks(0, 1, last + 1))
    assert too_sparse.why_not == f"3 backends have task numbers up to {last + 1}"
    assert len(too_sparse.backends) == 3
    huge = number(tasks(0, 10**30))
    assert huge.backends == tasks(0, 10**30), "no list of that length is made"


def test_the_second_address_of_a_task_comes_last() -> None:
    """Two address families: the first by address has the place of the task."""
    hosts = [
        (n, host) for n in range(6) for host in (f"10.0.0.{9 - n}", f"[fd00::{n}]")
    ]
    both = snapshot([Endpoint(f"{host}:1", task=n) for n, host in hosts])
    order = list(choice()(both))
    assert numbers_of(order[:6]) == subset("rocksteadier", 7, 6, 6)
    assert [endpoint.address[0] for endpoint in order] == ["1"] * 6 + ["["] * 6
    assert sorted(order) == list(both)
    third = snapshot([*both, *(Endpoint(f"127.0.0.{n}:1", task=n) for n in range(6))])
    assert number(third).why_not == "18 backends have only 6 task numbers"


def test_two_ports_of_a_host_are_one_task() -> None:
    numbering = number(names("b-0:1", "b-0:2", "b-1:1"))
    assert numbering == Numbering(
        [Endpoint("b-0:1"), Endpoint("b-1:1")], [Endpoint("b-0:2")]
    )


@pytest.mark.parametrize(
    "addresses",
    [
        ("a-0.svc:1", "a-1.svc:1", "b-0.svc:1"),
        ("a-0.svc:1", "a-1.svc:1", "b-2.svc:1"),
        ("a-0.east:1", "a-1.east:1", "a-0.west:1"),
    ],
)
def test_names_of_several_jobs_are_not_taken_for_one(addresses: tuple[str]) -> None:
    """Or task 0 of the second would be a further address of the first's, and idle."""
    numbering = number(names(*addresses))
    assert numbering.why_not == "the names of backends are of several jobs"
    assert numbering.backends == names(*addresses)


def test_hosts_of_one_job_may_be_in_many_places() -> None:
    assert not number(names("a-0.rack1:7", "a-1.rack2:9")).why_not


# --- its price ---------------------------------------------------------------------


class Watched(tuple[Endpoint, ...]):
    """A snapshot that counts how often all of it is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Endpoint]:
        self.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("backends", [tasks(*range(100)), IPS], ids=["numbers", "IPs"])
@pytest.mark.parametrize("name", [AUTO, "rendezvous", "ringsteady"])
def test_a_snapshot_is_looked_through_once(name: str, backends: Endpoints) -> None:
    subset_of = choice(name)
    watched = Watched(backends)
    first = list(islice(subset_of(watched), SIZE))
    looks = watched.looks
    assert list(islice(subset_of(watched), SIZE)) == first
    assert watched.looks == looks


def test_the_order_is_read_no_further_than_asked() -> None:
    asked = count()
    numbering = number(tasks(*range(100)))
    assert numbers_of(islice(numbering.endpoints_of(asked), SIZE)) == list(range(SIZE))
    assert next(asked) == SIZE
