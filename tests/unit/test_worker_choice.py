"""Some workers of each task: 60 tasks of 8 workers, and 40 clients that may have 100
connections each; with no process and no connection."""

from collections import Counter
from itertools import islice

import pytest

from lbclient.core.backends.pool import few
from lbclient.core.backends.task_workers import TaskWorkers, ToldWorkers
from lbclient.core.model import Endpoint, Identity, snapshot
from lbclient.core.routing.locality import PreferNear
from lbclient.subsets.numbered import Choice
from lbclient.subsets.workers import by_turns

TASKS, WORKERS, CLIENTS = 60, 8, 40
SIZE, MOST = 20, 100

Worker = tuple[int, int]  # the number of its task, and its own
Connections = set[tuple[int, Worker]]  # of a client


def connections(
    clients: int = CLIENTS,
    tasks: int = TASKS,
    workers: int = WORKERS,
    lost: frozenset[Worker] = frozenset(),
    has_numbers: bool = True,
) -> Connections:
    """As channels choose them, through the same functions."""
    endpoints = snapshot(
        [
            Endpoint(f"10.0.{task}.1:50051", task=task if has_numbers else None)
            for task in range(tasks)
        ]
    )
    number = {each.address: int(each.address.split(".")[2]) for each in endpoints}
    found: Connections = set()
    for client in range(clients):
        identity = Identity(client if has_numbers else None)
        subset = PreferNear(Choice("auto", SIZE, identity, f"client-{client}", ""), "")
        known = TaskWorkers(subset.workers)
        for task in islice(subset(endpoints), SIZE):
            at = number[task.address]
            own = [0 if (at, n) in lost else n + 1 for n in range(workers)]
            known.learn(task.address, ToldWorkers(7, ((50051, tuple(own)),)), 0.0)
            known.reached(task.address.replace("50051", str(max(own))))
            for one in few(task, known.expand(task), MOST // SIZE):
                port = int(one.address.rpartition(":")[2])
                found.add((client, (at, port - 1)))
    return found


def extremes(found: Connections, tasks: int = TASKS) -> tuple[float, float]:
    """Of the busiest and the idlest worker, over the mean."""
    counts = Counter(worker for _, worker in found)
    mean = len(found) / (tasks * WORKERS)
    of_all = [counts[task, n] / mean for task in range(tasks) for n in range(WORKERS)]
    return max(of_all), min(of_all)


def test_each_client_has_as_many_connections_as_it_may() -> None:
    counts = Counter(client for client, _ in connections())
    assert {*counts.values()} == {MOST}


def test_connections_are_even_over_all_workers() -> None:
    most, fewest = extremes(connections())
    assert most <= 1.25
    assert fewest >= 0.7
    # By chance they are less so, as without task numbers.
    by_chance, _ = extremes(connections(has_numbers=False))
    assert by_chance > most


def test_another_client_moves_nobody() -> None:
    assert connections() < connections(clients=CLIENTS + 1)


def test_another_task_moves_no_worker_of_tasks_that_stay() -> None:
    before, after = connections(), connections(tasks=TASKS + 1)
    opened = after - before
    stays = {(client, worker[0]) for client, worker in before}
    # Each client swaps two tasks at most, and those with all of their workers.
    assert not [one for one in opened if (one[0], one[1][0]) in stays]
    per_client = Counter(client for client, _ in opened)
    assert max(per_client.values()) <= 2 * MOST // SIZE


def test_a_lost_worker_costs_each_of_its_clients_one_connection() -> None:
    lost = (7, 3)
    before, after = connections(), connections(lost=frozenset({lost}))
    gone = before - after
    assert {worker for _, worker in gone} == {lost}
    assert len(after - before) == len(gone)
    assert {worker[0] for _, worker in after - before} == {7}


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 8, 16, 64])
def test_each_worker_has_its_place_in_each_order(workers: int) -> None:
    firsts = Counter(by_turns(client, 7, workers)[0] for client in range(10 * workers))
    assert sorted(by_turns(5, 7, workers)) == [*range(workers)]
    # A lot's ten clients begin at ten turns in a row, each lot ten further.
    assert max(firsts.values()) - min(firsts.values()) <= 1
