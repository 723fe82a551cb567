"""Servers restarted beneath stock clients, beside servers of plain grpc.aio."""

from benchmarks.faults import rolling_restart
from tests import needs


def test_clients_in_node_are_among_the_strangers() -> None:
    needs.program("node")
    if not rolling_restart.has_node():
        needs.skip("no grpc-js: `make node`, which needs npm's registry")
    kinds = {
        stranger.name.partition(" ")[0] for stranger in rolling_restart.strangers()
    }
    assert kinds == {"aio", "sync", "node"}


async def test_a_restart_loses_no_more_calls_of_strangers_than_grpc_aio() -> None:
    """Without health checks GOAWAY is all that they get. gRPC's core cancels what
    arrives while that is on its way, which is one call in some restarts, of either.
    """
    rollouts = [await rolling_restart.roll(kind, 1.0) for kind in ("stock", "ours")]
    for rollout in rollouts:
        for name, ended in rollout.ended.items():
            lost = {status: n for status, n in ended.items() if status != "OK"}
            assert set(lost) <= {"CANCELLED: CANCELLED"}, (name, lost)
            assert ended["OK"] > 20, (name, ended)
    lost_by = [
        sum(ended.total() - ended["OK"] for ended in rollout.ended.values())
        for rollout in rollouts
    ]
    assert lost_by[1] <= lost_by[0] + rolling_restart.SERVERS
    # Nothing waits for the clients that do not listen.
    assert max(rollouts[1].restarts) < 10.0
