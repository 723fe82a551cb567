"""Promised fakes: what our own tests use, and yours may.

>>> from random import Random
>>> from lbclient.pickers import RoundRobin
>>> RoundRobin(Random(7)).pick(fake_nodes(3), now=0.0)
<b1:1 ready, 0 in flight>
"""

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
