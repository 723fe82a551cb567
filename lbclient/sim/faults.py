"""What is wrong with a simulated backend, as its scenario says; at first nothing."""

from collections.abc import Callable


class SimulatedFaults:
    """The faults of one backend, which owns them. The simulation sets them at any time.

    The methods need not be called where there is no such fault; most have none.
    """

    __slots__ = ("delay", "doomed", "fails", "is_gone", "is_sinkhole")

    def __init__(self) -> None:
        self.delay = 0.0  # seconds; what a gray one adds to each request
        self.is_sinkhole = False  # all fail at once
        # It crashed, and took its connections with it: what comes is lost.
        self.is_gone = False
        self.fails: Callable[[int], bool] | None = None  # a request, by its number
        self.doomed: set[int] = set()  # running requests that will fail

    def dooms(self, number: int) -> bool:
        """Whether a request that begins to run will fail at once."""
        if self.is_sinkhole:
            return True
        if self.fails is not None and self.fails(number):
            self.doomed.add(number)
            return True
        return False

    def fails_now(self, number: int) -> bool:
        """Whether a request that has run fails. Asked once."""
        is_doomed = number in self.doomed
        self.doomed.discard(number)
        return is_doomed or self.is_sinkhole

    def crash(self) -> None:
        """Forgets what ran; what comes is lost from now on."""
        self.is_gone = True
        self.doomed.clear()

    def __repr__(self) -> str:
        return f"<{len(self.doomed)} doomed, {self.delay:g} s late>"
