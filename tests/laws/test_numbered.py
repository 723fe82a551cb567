"""What a channel's order of endpoints promises, whatever algorithm it chose."""

from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.model import Endpoint, Endpoints, Identity, snapshot
from lbclient.subsets import ALGORITHMS
from lbclient.subsets.numbered import AUTO, Choice

names = st.sampled_from([AUTO, *ALGORITHMS])
clients = st.integers(0, 10_000)
sizes = st.integers(1, 30)
hosts = st.one_of(
    st.builds("10.0.0.{}".format, st.integers(0, 255)),
    st.builds("b-{}".format, st.integers(0, 40)),
    st.builds("{}-{}.svc".format, st.sampled_from("ab"), st.integers(0, 3)),
)
tasks = st.integers(0, 20)


def lists(task: st.SearchStrategy[int | None]) -> st.SearchStrategy[Endpoints]:
    addresses = st.builds("{}:{}".format, hosts, st.integers(1, 2))
    endpoint = st.builds(Endpoint, addresses, task=task)
    return st.lists(endpoint, max_size=40).map(snapshot)


endpoints = lists(tasks) | lists(st.none() | st.integers(0, 40))


def choice(name: str, size: int, client: int) -> Choice:
    return Choice(name, size, Identity(client, "told"), "me", "")


@given(names, clients, sizes, endpoints)
def test_the_order_has_each_endpoint_once(
    name: str, client: int, size: int, snapshot: Endpoints
) -> None:
    order = list(choice(name, size, client)(snapshot))
    assert sorted(order, key=str) == sorted(snapshot, key=str)


@given(names, clients, sizes, endpoints, endpoints)
def test_what_was_there_before_changes_no_order(
    name: str, client: int, size: int, snapshot: Endpoints, before: Endpoints
) -> None:
    subset = choice(name, size, client)
    list(subset(before))
    assert list(subset(snapshot)) == list(choice(name, size, client)(snapshot))


# So few that with any one gone the numbers are not too sparse to be believed.
ALWAYS = set(range(30, 39))


@given(names, clients, sizes, st.sets(st.integers(0, 29), min_size=1), st.data())
def test_a_missing_task_moves_nobody_else(
    name: str, client: int, size: int, tasks: set[int], data: st.DataObject
) -> None:
    """But for the last one, which tells how many there are."""
    gone = data.draw(st.sampled_from(sorted(tasks)))
    before, after = (
        list(choice(name, size, client)(snapshot([Endpoint(f"b-{n}:1") for n in here])))
        for here in (tasks | ALWAYS, tasks - {gone} | ALWAYS)
    )
    assert after == [each for each in before if each.address != f"b-{gone}:1"]
