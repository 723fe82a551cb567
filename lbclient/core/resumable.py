"""Streams that the application can end and open again elsewhere: `resumable`.

The application declares the stream around the call, and is told when it should move to
another backend. Only the application moves it, and nothing goes on the wire.
"""

from collections.abc import Callable
from contextvars import ContextVar

from lbclient.core.errors import ConfigError
from lbclient.core.scope import Scope

OnMove = Callable[[], object]

_current: ContextVar[OnMove | None] = ContextVar("resumable", default=None)


class resumable(Scope):
    """Declares streams that are opened in a block or function, and in tasks started
    there, resumable.

    A resumable stream goes to the backend with the fewest of them. `on_move` is called
    in the channel's event loop, once for each stream, when that stream should move to
    another backend: end it when it suits you, and open it again. `lbclient.resumed`
    does so by itself. It has no effect on calls with one request and one response.
    Raises ConfigError if `on_move` cannot be called.

    >>> with resumable(print):
    ...     current() is print
    True
    """

    _current = _current
    _before = ContextVar("resumable before", default=None)

    def __init__(self, on_move: OnMove) -> None:
        if not callable(on_move):
            want = "a function without parameters"
            raise ConfigError("on_move", on_move, want)
        self._value = on_move


current = _current.get
"""What `resumable` has set; or None."""
