"""What all backends of one channel share to connect and to be watched."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

import grpc

from lbclient.client.connect_pacer import ConnectPacer
from lbclient.client.health.udp import Prober
from lbclient.core.backends.task_workers import ToldWorkers
from lbclient.core.model import Endpoint, LoadReport
from lbclient.core.protocols import Clock
from lbclient.grpc_seam import Options


class Dial(Protocol):
    """Makes an inner channel; `more` are options beyond those of all of them."""

    def __call__(self, endpoint: Endpoint, more: Options = ...) -> grpc.aio.Channel: ...


class BackendContext(NamedTuple):
    """What the backends of one channel share; `label` is the channel in the log.
    `prober` makes the channel's one when it is first asked.

    `health` and `health_interval`, in seconds, are those of `ChannelConfig`.
    `utilization_of` reads from a report what pickers go by. `has_udp_secret`: the
    channel has a secret of its own for UDP health checks. `zone` is the one that calls
    should stay in; empty: any. `hear_workers` is told what the server at an address
    says of its task's workers; None: several tasks answer there.
    """

    label: str
    dial: Dial
    pacer: ConnectPacer
    prober: Callable[[], Prober]
    clock: Clock
    rng: Random
    health: str
    health_interval: float
    utilization_of: Callable[[LoadReport], float]
    has_udp_secret: bool
    zone: str
    hear_workers: Callable[[str, ToldWorkers | None], None]
