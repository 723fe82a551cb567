"""How many calls of each method ended in which way.

The number of methods is bounded: names of a proxy's methods, and of those that a
generic handler serves, come from clients. Methods beyond the bound, and those whose
name is too long or cannot be printed, share one entry, whose name is empty.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

from lbclient.core.text import is_printable

MOST = 500  # methods. Ours: ten times those of a large service
LONGEST = 400  # characters of a path

Code = TypeVar("Code")

Method = tuple[str, str]
"""Its kind, such as "unary_stream", and its path; both empty for all the others."""

OTHERS: Method = ("", "")


class CallCounts(Generic[Code]):
    """Counts calls by method and status code. Owned by a balancer or a server, written
    when a call ends.

    >>> handled = CallCounts(("OK", "UNKNOWN"))
    >>> handled.of("unary_unary", "/search.Search/Search")["OK"] += 1
    >>> handled.read()
    {('unary_unary', '/search.Search/Search'): {'OK': 1, 'UNKNOWN': 0}}
    """

    def __init__(self, codes: Iterable[Code]) -> None:
        self._codes = tuple(codes)
        self._methods: dict[Method, dict[Code, int]] = {}

    def of(self, kind: str, path: str) -> dict[Code, int]:
        """Returns the counts of a method, by code, for the caller to increment."""
        method = (kind, path)
        if method not in self._methods and not self._has_place(path):
            method = OTHERS
        return self._methods.setdefault(method, dict.fromkeys(self._codes, 0))

    def _has_place(self, path: str) -> bool:
        is_full = len(self._methods) >= MOST
        return not is_full and len(path) <= LONGEST and is_printable(path)

    def method_of(self, counts: dict[Code, int]) -> Method:
        """The method that has these counts. Searches all methods."""
        methods = list(self._methods.items())
        return next((method for method, its in methods if its is counts), OTHERS)

    def read(self) -> dict[Method, dict[Code, int]]:
        """Returns a copy. May be called from any thread."""
        methods = list(self._methods.items())
        return {method: dict(counts) for method, counts in methods}

    def __repr__(self) -> str:
        return f"<{len(self._methods)} methods>"
