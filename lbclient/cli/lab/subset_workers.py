"""The answer of `lbclient subset --workers`: connections to tasks of workers."""

from collections import Counter
from itertools import islice

from lbclient.cli.lab.subset_answers import Fleet, SubsetAnswer
from lbclient.cli.layout import count, item, ratio
from lbclient.core.errors import ConfigError
from lbclient.subsets.advice import MOST_CONNECTIONS
from lbclient.subsets.rocksteadier import LOT
from lbclient.subsets.workers import by_turns

MOST_WORKERS = 64  # of a task; of more a health report tells none


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
    for client in range(fleet.clients):
        number = client + LOT * fleet.offset
        for task in islice(fleet.order(client), fleet.taken):
            by_worker.update(
                (task, one) for one in by_turns(number, task, workers)[:taken]
            )
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
    ]
    if taken < workers:
        lines += ["", f"max_connections={all_} connects each client to all workers."]
    return SubsetAnswer("\n".join(lines), facts)
