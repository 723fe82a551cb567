"""`is_channel`: whether an object is a channel of lbclient, without importing it.

Whoever has a channel of ours has loaded it. `Channel` is for type hints, and imported
when they are evaluated.
"""

import sys
from typing import TYPE_CHECKING, TypeGuard

MODULE = "lbclient.client.channel"

if TYPE_CHECKING:
    from lbclient.client.channel import Channel as Channel
else:

    def __getattr__(name: str) -> object:
        if name != "Channel":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from lbclient.client.channel import Channel

        return Channel


def is_channel(thing: object) -> "TypeGuard[Channel]":
    """Whether it is a channel of lbclient."""
    module = sys.modules.get(MODULE)
    return module is not None and isinstance(thing, module.Channel)
