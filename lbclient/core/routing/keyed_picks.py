"""Finds out what else a picker can do, and lets one that sees calls be any `Picker`.

Each of these functions is for one protocol of `core.protocols`.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from lbclient.core.call_hints import CallHints
from lbclient.core.protocols import KeyedPicker, N, ReachingPicker

Answered = Callable[[CallHints, Any, float | None, float], None]
"""`protocols.LearningPicker.answered`."""

HomeOf = Callable[[CallHints, Sequence[Any], float], Any]
"""`protocols.HomingPicker.home_of`."""


def sees_calls(picker: object) -> bool:
    """Whether a picker wants to know the calls that it picks for."""
    return hasattr(picker, "pick_for")


def reaching(picker: object) -> ReachingPicker | None:
    """The picker, if it wants connections to backends outside of the subset."""
    is_reaching = callable(getattr(picker, "know", None))
    return cast(ReachingPicker, picker) if is_reaching else None


def answered_by(picker: object) -> Answered | None:
    """A picker's `answered`; None: it does not want to know of answers."""
    found: Answered | None = getattr(picker, "answered", None)
    return found if callable(found) else None


def home_of(picker: object) -> HomeOf | None:
    """A picker's `home_of`; None: its keys have no home."""
    found: HomeOf | None = getattr(picker, "home_of", None)
    return found if callable(found) else None


class PickerForCall:
    """A keyed picker for one call, as a `Picker`: whoever picks by it need not know of
    the call."""

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
