"""What a picker may know of the call that it picks for: `CallHints`, and `key`.

A key says what belongs together: a session, a shard, the prefix of a prompt. It is set
around calls, or read from their metadata or request as the channel is configured; none
of it goes on the wire. What is done with it is for the picker alone.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from math import inf
from typing import Any, NamedTuple, cast

from lbclient.core.criticality import DEFAULT, Criticality
from lbclient.core.errors import ConfigError
from lbclient.core.scope import Scope

MOST_KEYS = 256  # of a call; a prompt of 128,000 tokens has 250 blocks of 512
LONGEST_KEY = 1000  # characters, hashed for each call; a long URL has fewer
WANT_KEY = f"text of 1 to {LONGEST_KEY} characters"


class CallHints(NamedTuple):
    """A call as its picker sees it.

    `method` is its path, as "/package.Service/Method". `keys` go from the most to the
    least specific; empty if it has none. `cost` is what the caller said that it costs,
    relative to other calls. `tried` are the backends that it was sent to before.
    `is_resumable`: it is a stream that its caller can end and open again elsewhere.
    """

    method: str
    keys: tuple[str, ...] = ()
    criticality: Criticality = DEFAULT
    cost: float = 1.0
    tried: tuple[Any, ...] = ()
    is_resumable: bool = False


class KeysAndCost(NamedTuple):
    """Holds what `key` sets."""

    keys: tuple[str, ...]
    cost: float


_current: ContextVar[KeysAndCost | None] = ContextVar("key", default=None)


class key(Scope):
    """Sets the keys of calls made in a block or function, and in tasks started there.

    A picker that knows keys sends calls with one key to one backend. Name several from
    the most to the least specific, as for caches. `cost` is what a call costs relative
    to others, in any unit, for pickers of your own. Use it around a block, or as the
    decorator of a function of any kind. Raises ConfigError for a key that is not text
    of 1 to 1000 characters, for more than 256 keys, and for a cost that is no number
    above 0.

    >>> with key("session-42", "tenant-7"):
    ...     current()
    KeysAndCost(keys=('session-42', 'tenant-7'), cost=1.0)
    """

    _current = _current
    _before = ContextVar("keys before", default=None)

    def __init__(self, *keys: str, cost: float = 1.0) -> None:
        if type(cost) not in (int, float) or not 0.0 < cost < inf:
            raise ConfigError("cost", cost, "a number above 0")
        self._value = KeysAndCost(checked_keys("key", keys), float(cost))


def checked_keys(field: str, keys: Sequence[object]) -> tuple[str, ...]:
    """Returns keys of a call as a tuple. Raises ConfigError for what are none."""
    if not 0 < len(keys) <= MOST_KEYS:
        raise ConfigError(field, f"{len(keys)} keys", f"1 to {MOST_KEYS} keys")
    for one in keys:
        if not isinstance(one, str) or not 0 < len(one) <= LONGEST_KEY:
            raise ConfigError(field, one, WANT_KEY)
    return cast(tuple[str, ...], tuple(keys))


current = _current.get
"""What `key` has set; or None."""
