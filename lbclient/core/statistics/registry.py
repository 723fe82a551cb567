"""The open channels and servers of this process, for the status page.

Each is entered when it is made, so that nobody has to hand them around, and leaves when
it is closed. Held weakly: to be known keeps nothing alive.
"""

from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Registry(Generic[T]):
    """Remembers objects weakly, by number. May be asked from any thread."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._present: WeakValueDictionary[int, T] = WeakValueDictionary()
        self.tell_when_left: list[Callable[[T], None]] = []  # and closed, in its thread

    def enter(self, one: T) -> int:
        """Returns a number for it, which stays its own."""
        number = next(self._numbers)
        self._present[number] = one
        return number

    def leave(self, number: int) -> None:
        one = self._present.pop(number, None)
        if one is not None:
            for tell in self.tell_when_left:
                tell(one)

    def present(self) -> list[tuple[int, T]]:
        """The open ones by number, the oldest first."""
        # A list made at once: another thread may enter one meanwhile.
        references = sorted(self._present.valuerefs(), key=lambda known: known.key)
        known = [(reference.key, reference()) for reference in references]
        return [(number, one) for number, one in known if one is not None]


CHANNELS: Registry[object] = Registry()
SERVERS: Registry[object] = Registry()
