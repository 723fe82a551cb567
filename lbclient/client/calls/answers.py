"""Tells a `LearningPicker` how soon each call was answered.

It is told once for each attempt: when the caller reads the first message of a stream,
or when the attempt ends. An error that the picker raises is logged once, and fails no
call.
"""

from typing import TYPE_CHECKING

from lbclient.background.tasks import is_fatal
from lbclient.core.routing.keyed_picks import answered_by
from lbclient.log import Log

if TYPE_CHECKING:
    from lbclient.client.calls.attempt import Attempt

logger = Log("lbclient.balancer")  # as documented, for the whole channel


class Answers:
    """Tells a picker of answers. Owned by a balancer. `is_wanted`: the picker has a
    method `answered`."""

    def __init__(self, label: str, picker: object) -> None:
        self._label = label
        self._told: dict[tuple[int, int], Attempt] = {}  # streams that are not over
        self._has_failed = False
        self.serve(picker)

    def serve(self, picker: object) -> None:
        """Tells this picker from now on."""
        self._answered = answered_by(picker)
        self.is_wanted = self._answered is not None

    def first_message(self, attempt: "Attempt", seconds: float, now: float) -> None:
        """The first message of a stream was read."""
        if attempt.hints is not None:
            self._told[_key_of(attempt)] = attempt
            self._tell(attempt, seconds, now)

    def over(self, attempt: "Attempt", seconds: float | None, now: float) -> None:
        """An attempt has ended, after so many seconds; None: it failed, or was not
        sent."""
        if self._told.pop(_key_of(attempt), None) is None:
            self._tell(attempt, seconds, now)

    def _tell(self, attempt: "Attempt", seconds: float | None, now: float) -> None:
        if self._answered is None or attempt.hints is None:
            return
        try:
            self._answered(attempt.hints, attempt.backend, seconds, now)
        except BaseException as error:  # of a picker that is not ours, perhaps
            if is_fatal(error):
                raise
            if not self._has_failed:
                self._has_failed = True
                words = "%s: the picker's `answered` raised; calls go on"
                label = self._label
                logger.exception(words, label, channel=label, reason=error)

    def __repr__(self) -> str:
        return f"<{len(self._told)} streams that have begun to answer>"


def _key_of(attempt: "Attempt") -> tuple[int, int]:
    """The identity of an attempt, which may be replaced by a copy with another number.

    Two attempts of a call are on different backends.
    """
    return id(attempt.hints), id(attempt.backend)
