"""How much it matters that a request is served: four words, and who goes first.

It is no latency class: a suggestion while somebody types is wanted at once or not at
all, and is highly sheddable. It is set near the user and travels down with the call;
whoever names none means CRITICAL. SRE book, ch. 21, "Criticality".
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum

from lbclient.errors import ConfigError


class Criticality(IntEnum):
    """From what is refused first to what is refused last; its name goes on the wire."""

    SHEDDABLE = 0
    SHEDDABLE_PLUS = 1
    CRITICAL = 2
    CRITICAL_PLUS = 3


DEFAULT = Criticality.CRITICAL  # "the default for requests sent from production jobs"

# An unknown word is not worth the cost of a search for what it may have meant.
_BY_TEXT: dict[str | bytes, Criticality] = {}
for _one in Criticality:
    for _text in (_one.name, _one.name.lower()):
        _BY_TEXT[_text] = _BY_TEXT[_text.encode()] = _one

_current: ContextVar[Criticality | None] = ContextVar("criticality", default=None)


def parse(value: str | bytes | None) -> tuple[Criticality, bool]:
    """What a header says, and whether it was understood; None is no header.

    >>> parse("SHEDDABLE_PLUS"), parse(None)
    ((<Criticality.SHEDDABLE_PLUS: 1>, True), (<Criticality.CRITICAL: 2>, True))
    >>> parse("urgent!")
    (<Criticality.CRITICAL: 2>, False)
    """
    if value is None:
        return DEFAULT, True
    known = _BY_TEXT.get(value)
    return (DEFAULT, False) if known is None else (known, True)


@contextmanager
def criticality(value: Criticality | str) -> Iterator[None]:
    """What is called within has this criticality, and so have the tasks begun there.

    Raises ConfigError for what is neither a Criticality nor the name of one.

    >>> with criticality(Criticality.SHEDDABLE):
    ...     current()
    <Criticality.SHEDDABLE: 0>
    """
    known = value if isinstance(value, Criticality) else _BY_TEXT.get(value)
    if known is None:
        want = f"one of {', '.join(Criticality.__members__)}"
        raise ConfigError("criticality", value, want)
    token = _current.set(known)
    try:
        yield
    finally:
        _current.reset(token)


def adopt(value: Criticality) -> None:
    """That of a request, for the rest of the task that serves it."""
    _current.set(value)


def current() -> Criticality | None:
    """That of the request being served, or of `criticality`; None: nobody said."""
    return _current.get()


def shares(room: Sequence[float], demand: Sequence[float]) -> list[float]:
    """The share of each demand that gets in when the highest goes first.

    All three have a number for each criticality, lowest first. `room[c]` is what c and
    all above it may take together, so it must not fall from one to the next. One that
    gets less than all leaves nothing for those below.

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
