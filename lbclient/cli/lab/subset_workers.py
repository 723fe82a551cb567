"""The answer of `lbclient subset --workers`: connections to tasks of workers."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from lbclient.cli.lab.subset_answers import Fleet, SubsetAnswer
from lbclient.cli.layout import count, item, ratio
from lbclient.core.errors import ConfigError
from lbclient.subsets.advice import MOST_CONNECTIONS
from lbclient.subsets.rocksteadier import LOT
from lbclient.subsets.workers import by_turns

MOST_WORKERS = 64  # of a task; of more a health report tells none


def _workers_of(
    fleet: Fleet, client: int, number: int, workers: int, taken: int
) -> Iterator[tuple[int, int]]:
    """The workers that a client connects to, each by its task's number and its own."""
    for task in islice(fleet.order(client), fleet.taken):
        for one in by_turns(number, task, workers)[:taken]:
            yield task, one


def of_workers(fleet: Fleet, workers: int, most: int) -> SubsetAnswer:
    """How many connections clients have, and how even they are over the workers."""
    for field, value, highest in (
        ("workers", workers, MOST_WORKERS),
        ("max_connections", most, 1_000_000),
    ):
        if type(value) is not int or not 1 <= value <= highest:
            raise ConfigError(field, value, f"a whole number, 1 to {highest}")
    taken = min(workers, max(1, most // fleet.taken))
    if fleet.connections * taken > MOST_CONNECTIONS:
        want = f"fewer: {fleet.connections * taken} connections are too many to look at"
        raise ConfigError("clients", fleet.clients, want)
    by_worker: Counter[tuple[int, int]] = Counter()
    more = fleet.resized(fleet.backends + 1)
    taken_then = min(workers, max(1, most // more.taken))
    opened = []  # by each client, when there is one task more
    for client in range(fleet.clients):
        number = client + LOT * fleet.offset
        before = {*_workers_of(fleet, client, number, workers, taken)}
        after = {*_workers_of(more, client, number, workers, taken_then)}
        by_worker.update(before)
        opened.append(len(after - before))
    mean = by_worker.total() / (fleet.backends * workers)
    every = [by_worker[t, w] for t in range(fleet.backends) for w in range(workers)]
    each, all_ = fleet.taken * taken, fleet.taken * workers
    facts = fleet.facts() | {
        "workers": workers,
        "max_connections": most,
        "workers_of_each_task": taken,
        "connections_of_a_client": each,
        "connections_with_all_workers": all_,
        "connections_of_a_worker": {
            "mean": mean,
            "most": max(every),
            "fewest": min(every),
        },
        "opened_for_one_more_task": {
            "mean": sum(opened) / fleet.clients,
            "most": max(opened),
        },
    }
    lines = [
        str(fleet),
        f"{taken} of {count(workers, 'worker')} of each task: max_connections {most}",
        "",
        item("connections of a client", f"{each:,}"),
        item("with all workers", f"{all_:,}"),
        item("of a worker, mean", f"{mean:.1f}"),
        item("of the busiest", f"{max(every)}, {ratio(max(every) / mean)} of the mean"),
        item("of the idlest", f"{min(every)}, {ratio(min(every) / mean)} of the mean"),
        "",
        "with one task more",
        item("opened by a client, mean", f"{sum(opened) / fleet.clients:.1f}"),
        item("at most", f"{max(opened)}"),
    ]
    if taken < workers:
        lines += ["", f"max_connections={all_} connects each client to all workers."]
    return SubsetAnswer("\n".join(lines), facts)
