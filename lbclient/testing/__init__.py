"""Tools for testing your own services: fake channel, local fleet, virtual time.

See docs/testing.md. The tests of lbclient use them, too.

`LocalFleet` is a fleet of real servers in the test's process, `FakeChannel` a channel
whose answers the test scripts, `virtual_time` runs a test on a clock that jumps. The
fixtures of the pytest plugin are in `plugin`. `FakeNode` is a backend to pick.

>>> from random import Random
>>> from lbclient.pickers import RoundRobin
>>> RoundRobin(Random(7)).pick(fake_nodes(3), now=0.0)
<b1:1 ready, 0 in flight>
"""

from lbclient.testing.fake_calls import FakeCall
from lbclient.testing.fake_channel import FakeChannel
from lbclient.testing.local_fleet import LocalBackend, LocalFleet
from lbclient.testing.nodes import FakeNode, fake_nodes
from lbclient.testing.replies import FakeReply, failure
from lbclient.testing.virtual_loop import VirtualLoop, virtual_time

__all__ = [
    "FakeCall",
    "FakeChannel",
    "FakeNode",
    "FakeReply",
    "LocalBackend",
    "LocalFleet",
    "VirtualLoop",
    "failure",
    "fake_nodes",
    "virtual_time",
]
