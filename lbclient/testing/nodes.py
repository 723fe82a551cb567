"""Nodes to test a picker with: backends without a connection."""

from dataclasses import dataclass, field

from lbclient.core.load import Load
from lbclient.core.model import Endpoint, State


@dataclass(eq=False)
class FakeNode:
    """A backend without a connection: a `protocols.Node` to pick and to load."""

    endpoint: Endpoint
    state: State = State.READY
    load: Load = field(default_factory=Load)

    def __repr__(self) -> str:
        address, state = self.endpoint.address, self.state.value
        return f"<{address} {state}, {self.load.in_flight} in flight>"


def fake_nodes(count: int, ready_at: float = 0.0) -> tuple[FakeNode, ...]:
    """Nodes `b0:1`, `b1:1`, ... that are all ready since `ready_at`."""
    nodes = tuple(FakeNode(Endpoint(f"b{i}:1")) for i in range(count))
    for node in nodes:
        node.load.enter_ready(ready_at)
    return nodes
