"""How much it matters that a request is served: four words, and who goes first.

It is no latency class: a suggestion while somebody types is wanted at once or not at
all, and yet it is sheddable. Criticality is set near the user and travels down with the
call; the default is CRITICAL. SRE book, ch. 21, "Criticality".
"""

from collections.abc import Sequence
from contextvars import ContextVar
from enum import IntEnum

from lbclient.core.errors import ConfigError
from lbclient.core.scope import Scope


class Criticality(IntEnum):
    """Importance of a request. Servers refuse the lowest first. Its name goes on the
    wire."""

    SHEDDABLE = 0
    SHEDDABLE_PLUS = 1
    CRITICAL = 2
    CRITICAL_PLUS = 3


DEFAULT = Criticality.CRITICAL  # "the default for requests sent from production jobs"

# Two, as Python warns of text that is compared with bytes (`python -b`).
_BY_TEXT = {one.name: one for one in Criticality}
_BY_BYTES = {one.name.encode(): one for one in Criticality}

_current: ContextVar[Criticality | None] = ContextVar("criticality", default=None)


def parse(value: str | bytes | None) -> tuple[Criticality, bool]:
    """Parses a header, and says whether it was understood. None: there is no header.

    >>> parse("sheddable_plus"), parse(None)
    ((<Criticality.SHEDDABLE_PLUS: 1>, True), (<Criticality.CRITICAL: 2>, True))
    >>> parse("urgent!")
    (<Criticality.CRITICAL: 2>, False)
    """
    if value is None:
        return DEFAULT, True
    if isinstance(value, bytes):
        known = _BY_BYTES.get(value.upper())
    else:
        known = _BY_TEXT.get(value)
        if known is None:
            known = _BY_TEXT.get(value.upper())
    return (DEFAULT, False) if known is None else (known, True)


def named(field: str, value: object) -> Criticality:
    """A Criticality, or the one of this name in capitals or not, of a setting.

    >>> named("criticality", "Critical_plus")
    <Criticality.CRITICAL_PLUS: 3>

    Raises ConfigError for what is neither.
    """
    if isinstance(value, Criticality):
        return value
    known = _BY_TEXT.get(value.upper()) if isinstance(value, str) else None
    if known is None:
        want = f"one of {', '.join(Criticality.__members__)}"
        raise ConfigError(field, value, want)
    return known


class criticality(Scope):
    """Sets the criticality of calls made in a block or function, and in tasks started
    there.

    Use it around a block, or as the decorator of a function of any kind. Raises
    ConfigError for a value that is neither a Criticality nor the name of one.

    >>> with criticality(Criticality.SHEDDABLE):
    ...     current()
    <Criticality.SHEDDABLE: 0>
    """

    _current = _current
    _before = ContextVar("criticalities before", default=None)

    def __init__(self, value: Criticality | str) -> None:
        self._value = named("criticality", value)


def adopt(value: Criticality | None) -> None:
    """Sets the criticality of the request that the task serves; None: unknown."""
    _current.set(value)


current = _current.get
"""The criticality of the request served, or that of `criticality`; or None."""


def current_or_default() -> Criticality:
    """The same; DEFAULT where there is none."""
    found = _current.get()
    return DEFAULT if found is None else found


def shares(room: Sequence[float], demand: Sequence[float]) -> list[float]:
    """The share of each demand that is admitted if the highest criticality goes first.

    Arguments and result have a number for each criticality, lowest first. `room[c]` is
    what c and all higher ones may take together, so it must not fall from one to the
    next. If a criticality is not admitted in full, lower ones are not admitted at all.

    >>> shares([1.0, 1.0, 1.0, 1.0], [12.0, 0.0, 0.5, 0.0])
    [0.041666666666666664, 1.0, 1.0, 1.0]
    >>> shares([1.0, 1.0, 1.0, 1.0], [12.0, 0.0, 2.0, 0.0])
    [0.0, 0.0, 0.5, 1.0]
    """
    result = [1.0] * len(demand)
    taken = 0.0
    for c in reversed(range(len(demand))):
        left = room[c] - taken
        taken += demand[c]
        if taken > room[c]:
            result[c] = left / demand[c] if left > 0.0 else 0.0
    return result
