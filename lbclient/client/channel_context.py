"""What all parts of one channel share: config, tasks, clock, chance, events."""

from random import Random
from typing import NamedTuple

from lbclient.background.tasks import Tasks
from lbclient.background.turns import Turns
from lbclient.client.backends.rest import Rest
from lbclient.config import ChannelConfig
from lbclient.core.protocols import Clock
from lbclient.core.statistics.events import Events


class ChannelContext(NamedTuple):
    """What the parts of one channel share. `label` is its name in logs and errors."""

    label: str
    config: ChannelConfig
    tasks: Tasks
    turns: Turns
    clock: Clock
    rng: Random
    events: Events
    rest: Rest


def channel_context(
    label: str, config: ChannelConfig, clock: Clock, rng: Random
) -> ChannelContext:
    tasks = Tasks(label, rng, channel=label)
    return ChannelContext(
        label, config, tasks, Turns(tasks), clock, rng, Events(), Rest(tasks)
    )
