"""Reads a request's criticality, attempt number, customer, and who may decline it."""

from collections.abc import Iterable

from lbclient import wire
from lbclient.core.criticality import DEFAULT, Criticality, adopt, parse
from lbclient.core.quotas.quota import OTHERS
from lbclient.core.retries.attempt_histogram import StockAttempt
from lbclient.core.retries.retry import parse_attempt

ATTEMPT_KEYS = frozenset({wire.ATTEMPT_KEY, wire.STOCK_ATTEMPT_KEY})
WORDS = ATTEMPT_KEYS | {wire.CRITICALITY_KEY, wire.CUSTOMER_KEY, wire.DECLINE_KEY}


class RequestMetadata:
    """Reads a request's criticality, attempt and customer from its metadata. Owned by
    the gate. `misread` counts requests whose value could not be parsed, by key.

    A request that claims a criticality above `highest` gets `highest`.
    """

    def __init__(self, highest: Criticality = Criticality.CRITICAL_PLUS) -> None:
        self._highest = highest
        self.misread = dict.fromkeys(sorted({wire.CRITICALITY_KEY, *ATTEMPT_KEYS}), 0)

    def take(
        self, metadata: Iterable[tuple[str, str | bytes]]
    ) -> tuple[Criticality, int, str, str]:
        """Returns criticality, attempt, customer, and the task that may decline it.

        Puts the criticality in the context.

        The attempt is the larger of our channels' number and gRPC's own: one retry may
        be within another. gRPC's is a `StockAttempt`.
        """
        criticality, attempt, stock, customer = DEFAULT, 0, 0, OTHERS
        decliner = ""
        for key, value in metadata:
            if key not in WORDS:
                continue
            if key == wire.CRITICALITY_KEY:
                claimed, is_known = parse(value)
                criticality = min(claimed, self._highest)
                if is_known:
                    adopt(criticality)
                else:
                    self.misread[key] += 1
            elif key == wire.ATTEMPT_KEY and isinstance(value, str):
                attempt, is_known = parse_attempt(value)
                self.misread[key] += not is_known
            elif key == wire.STOCK_ATTEMPT_KEY and isinstance(value, str):
                stock, is_known = parse_attempt(value)
                self.misread[key] += not is_known
            elif key == wire.CUSTOMER_KEY:
                customer = str(value)
            elif key == wire.DECLINE_KEY:
                decliner = str(value)
        if stock > attempt:
            attempt = StockAttempt(stock)
        return criticality, attempt, customer, decliner

    def customer(self, metadata: Iterable[tuple[str, str | bytes]]) -> str:
        """Who pays, as `take` reads it."""
        found = [value for key, value in metadata if key == wire.CUSTOMER_KEY]
        return str(found[-1]) if found else OTHERS

    def named(self, metadata: Iterable[tuple[str, str | bytes]]) -> Criticality | None:
        """The criticality that a first attempt names; None: it names none, or retries.

        Counts nothing, and puts nothing in the context.
        """
        found = None
        for key, value in metadata:
            if key in ATTEMPT_KEYS:
                return None
            if key == wire.CRITICALITY_KEY:
                claimed, is_known = parse(value)
                found = min(claimed, self._highest) if is_known else None
        return found
