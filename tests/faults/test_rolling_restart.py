"""Servers restarted beneath stock clients, beside servers of plain grpc.aio."""

from collections import Counter

from benchmarks.faults import rolling_restart
from benchmarks.faults.goaway import is_no_worse, lost_of
from benchmarks.faults.rolling_restart import roll
from tests import needs

ROUNDS = 3


def test_clients_in_node_are_among_the_strangers() -> None:
    needs.program("node")
    if not rolling_restart.has_node():
        needs.skip("no grpc-js: `make node`, which needs npm's registry")
    kinds = {
        stranger.name.partition(" ")[0] for stranger in rolling_restart.strangers()
    }
    assert kinds == {"aio", "sync", "node"}


async def test_a_restart_loses_no_more_calls_of_strangers_than_grpc_aio() -> None:
    """Clients without health checks learn of a restart by GOAWAY alone.

    Calls that cross GOAWAY are lost by chance, hence the further rounds, which add
    their losses to those of the rounds before.
    """
    ours, theirs = Counter[str](), Counter[str]()
    for _ in range(ROUNDS):
        mine, stock = await roll("ours", 1.0), await roll("stock", 1.0)
        for name, ended in mine.ended.items():
            assert ended["OK"] > 20, (name, ended)
        # Nothing waits for the clients that do not listen.
        assert max(mine.restarts) < 10.0
        ours, theirs = ours + mine.total(), theirs + stock.total()
        if is_no_worse(ours, theirs):
            return
    raise AssertionError((lost_of(ours), lost_of(theirs)))
