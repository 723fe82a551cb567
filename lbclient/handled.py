"""How many calls of each method ended in which way.

Bounded: a proxy's methods, and those that a generic handler serves, are named by
whoever calls. Those beyond the bound share one entry, whose name is empty.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

MOST = 500  # methods. Ours: ten times those of a large service

Code = TypeVar("Code")

Method = tuple[str, str]
"""Its kind, such as "unary_stream", and its path; both empty for all the others."""

OTHERS: Method = ("", "")


class Handled(Generic[Code]):
    """Owned by a balancer or a server, written where a call ends.

    >>> handled = Handled(("OK", "UNKNOWN"))
    >>> handled.of("unary_unary", "/search.Search/Search")["OK"] += 1
    >>> handled.read()
    {('unary_unary', '/search.Search/Search'): {'OK': 1, 'UNKNOWN': 0}}
    """

    def __init__(self, codes: Iterable[Code]) -> None:
        self._codes = tuple(codes)
        self._methods: dict[Method, dict[Code, int]] = {}

    def of(self, kind: str, path: str) -> dict[Code, int]:
        """The counts of a method, each code among them, to be added to."""
        method = (kind, path)
        if method not in self._methods and len(self._methods) >= MOST:
            method = OTHERS
        return self._methods.setdefault(method, dict.fromkeys(self._codes, 0))

    def read(self) -> dict[Method, dict[Code, int]]:
        """A copy; also from another thread."""
        methods = list(self._methods.items())
        return {method: dict(counts) for method, counts in methods}

    def __repr__(self) -> str:
        return f"<{len(self._methods)} methods>"
