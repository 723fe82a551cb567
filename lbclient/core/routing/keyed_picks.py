"""Adapts pickers that see each call, such as those by key, to `Picker.pick`."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from lbclient.core.call_hints import CallHints
from lbclient.core.model import Endpoint, Endpoints
from lbclient.core.protocols import KeyedPicker, N

Answered = Callable[[CallHints, Any, float | None, float], None]
"""`protocols.LearningPicker.answered`."""

HomeOf = Callable[[CallHints, Sequence[Any], float], Any]
"""`protocols.HomingPicker.home_of`."""


def sees_calls(picker: object) -> bool:
    """Whether a picker wants to know the calls that it picks for."""
    return hasattr(picker, "pick_for")


class Reaching(Protocol):
    """The part of `protocols.ReachingPicker` that is about whom it cannot pick."""

    want: Callable[[Endpoint], None]

    def know(self, members: Endpoints) -> None: ...


def reaching(picker: object) -> Reaching | None:
    """A picker that wants backends beyond the subset; None: it does not."""
    is_reaching = callable(getattr(picker, "know", None))
    return cast(Reaching, picker) if is_reaching else None


def answered_by(picker: object) -> Answered | None:
    """What a picker is told by how soon a call was answered; None: it does not want to
    know."""
    found: Answered | None = getattr(picker, "answered", None)
    return found if callable(found) else None


def home_of(picker: object) -> HomeOf | None:
    """Where a picker would have a call's key; None: its keys have no home."""
    found: HomeOf | None = getattr(picker, "home_of", None)
    return found if callable(found) else None


class PickerForCall:
    """A keyed picker, for one call: what takes a picker need not know of calls."""

    __slots__ = ("_call", "picker")

    def __init__(self, picker: object, call: CallHints) -> None:
        self.picker = cast(KeyedPicker, picker)
        self._call = call

    def has_keys(self) -> bool:
        return bool(self._call.keys)

    def pick(self, ready: Sequence[N], now: float) -> N:
        return self.picker.pick_for(self._call, ready, now)

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        return self.picker.weights(ready, now)

    def __repr__(self) -> str:
        return f"<{self.picker!r} for {self._call.method}>"
