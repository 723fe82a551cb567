"""Calls the user's functions in `ServerConfig`: utilization, signals, customer.

They are code of others: what one raises, or returns that makes no sense, is counted,
logged once by its name, and not used.
"""

from collections.abc import Callable
from math import inf, isnan, nan

from lbclient.background.tasks import is_fatal
from lbclient.config import ServerConfig
from lbclient.core.text import printable
from lbclient.log import Log

logger = Log(__name__)

# Ours: a task may have ten times what it can do in its queue, hardly more.
MOST_UTILIZATION = 10.0
SHARE = (
    "1.0 is to be all that the task can do, and 0.45 45 %; more than 1.0 is overload"
)


class UserSignals:
    """Calls the functions in `ServerConfig`, and counts those that fail. Owned by the
    server; the reporter and the gate ask it."""

    def __init__(self, config: ServerConfig) -> None:
        self._utilization = config.utilization
        self._replaces = config.utilization_replaces
        self._runnable = config.runnable
        self._signals = config.signals or {}
        self._named = config.named_metrics or {}
        self.names = tuple(self._signals)
        self.has_runnable = config.runnable is not None
        self.failed: set[str] = set()  # of `signals`, when they were last read
        self.failures = 0
        self.complained: set[str] = set()  # of what
        self._has_said = False  # that a utilization is no share

    def utilization(self, measured: float) -> float | None:
        """Returns the application's, or `measured` if that is larger or it fails.

        None: the application does not measure itself.
        """
        if self._utilization is None:
            return None
        own = self._ask("utilization", self._utilization, measured)
        if own > MOST_UTILIZATION and not self._has_said:
            self._has_said = True
            words = "ServerConfig.utilization returned %g: is it in percent? %s"
            logger.warning(words, own, SHARE, reason=f"returned {own:g}")
        return own if self._replaces else max(own, measured)

    def runnable(self) -> int | None:
        """Asked for each request: no frame more than it takes."""
        signal = self._runnable
        if signal is None:
            return None
        try:
            value = int(signal())
        except BaseException as error:
            self._failed("runnable", error)
            return None
        if 0 <= value < 2**32:
            return value
        self.complain("runnable", f"returned {value}")
        return None

    def values(self) -> list[float]:
        """The values of `signals`, in the order of `names`; 0.0 for one that fails."""
        self.failed.clear()
        values = []
        for name, signal in self._signals.items():
            value = self._ask(f"signals[{name!r}]", signal, nan)
            if isnan(value):
                self.failed.add(name)
            values.append(0.0 if isnan(value) else value)
        return values

    def named(self) -> dict[str, float]:
        """The known ones of `named_metrics`."""
        found = {}
        for name, metric in self._named.items():
            value = self._ask(f"named_metrics[{name!r}]", metric, nan, may_be_nan=True)
            if not isnan(value):
                found[name] = value
        return found

    def _ask(
        self,
        name: str,
        signal: Callable[[], float],
        otherwise: float,
        may_be_nan: bool = False,
    ) -> float:
        try:
            value = float(signal())
        except BaseException as error:
            self._failed(name, error)
            return otherwise
        if 0.0 <= value < inf or (may_be_nan and isnan(value)):
            return value
        self.complain(name, f"returned {value}")
        return otherwise

    def _failed(self, name: str, error: BaseException) -> None:
        if is_fatal(error):
            raise error
        self.complain(name, f"raised {error!r}")

    def complain(self, signal: str, what: str) -> None:
        self.failures += 1
        if signal not in self.complained:
            self.complained.add(signal)
            said = printable(what)  # of code that may have read a request
            words = "the signal ServerConfig.%s %s: not used"
            logger.warning(words, signal, said, reason=said)

    def __repr__(self) -> str:
        return f"<{len(self.names)} signals, {self.failures} failures>"
