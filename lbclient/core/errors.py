"""Errors outside of calls; those of calls are in `wire.local_errors`.

Errors are shown to people, so each is one line of bounded length, whatever is in it.
"""

from lbclient.core.text import brief, printable

MOST_WORDS = 1000  # characters of a ConfigError; what is wanted may be a list of names


class LbError(Exception):
    """Base class of lbclient's errors."""


class ConfigError(LbError, ValueError):
    """A setting has an invalid value. The message names the setting, the value and what
    is allowed.

    >>> str(ConfigError("subset_size", 0, "a whole number of at least 1"))
    'subset_size = 0: want a whole number of at least 1'

    `source` is the file that has the setting, if any; a setting from an environment
    variable goes by the variable's name. If `value` looks like a URL, only scheme and
    host are shown.
    """

    def __init__(self, field: str, value: object, want: str, source: str = "") -> None:
        super().__init__(field, value, want, source)
        self.field = field
        self.value = value
        self.want = want
        self.source = source

    def __str__(self) -> str:
        place = f"{self.source}: " if self.source else ""
        said = f"{place}{self.field} = {brief(self.value)}: want {self.want}"
        return printable(said, MOST_WORDS)

    def __repr__(self) -> str:
        return f"ConfigError({str(self)!r})"


class ResolveError(LbError):
    """A lookup of endpoints failed. The channel keeps the last good ones.

    >>> str(ResolveError("no answer: \\x1b[2J"))
    'no answer: ?[2J'
    """

    def __init__(self, *words: object) -> None:
        super().__init__(*(printable(w) if isinstance(w, str) else w for w in words))
