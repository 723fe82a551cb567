"""Tells which function an event loop calls when a socket can be read.

asyncio has no public way to ask. Loops of asyncio's own keep it in their selector;
others, such as uvloop, do not tell.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any


def readers_of(
    loop: asyncio.AbstractEventLoop,
) -> Iterator[tuple[int, Callable[..., Any]]]:
    """Each file descriptor that the loop reads and what it calls then, the oldest
    first. No reader may be added or removed before the next one is taken."""
    selector: Any = getattr(loop, "_selector", None)
    for key in (getattr(selector, "get_map", dict)() or {}).values():
        reader = key.data[0] if isinstance(key.data, tuple) else None
        callback = getattr(reader, "_callback", None)
        if callback is not None:
            yield key.fd, callback
