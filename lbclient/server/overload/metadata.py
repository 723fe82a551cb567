"""What a request says of itself in its metadata: it matters, was tried, is paid for."""

from collections.abc import Iterable

from lbclient import wire
from lbclient.core.criticality import DEFAULT, Criticality, adopt, parse
from lbclient.core.quota import OTHERS
from lbclient.core.retry import parse_attempt

WORDS = frozenset({wire.CRITICALITY_KEY, wire.ATTEMPT_KEY, wire.CUSTOMER_KEY})


class RequestMetadata:
    """Owned by the gate. `misread`: requests whose words made no sense, by key."""

    def __init__(self) -> None:
        self.misread = {wire.CRITICALITY_KEY: 0, wire.ATTEMPT_KEY: 0}

    def take(
        self, metadata: Iterable[tuple[str, str | bytes]]
    ) -> tuple[Criticality, int, str]:
        """Returns criticality, attempt and customer; puts the first in the context."""
        criticality, attempt, customer = DEFAULT, 0, OTHERS
        for key, value in metadata:
            if key == wire.CRITICALITY_KEY:
                criticality, is_known = parse(value)
                if is_known:
                    adopt(criticality)
                else:
                    self.misread[key] += 1
            elif key == wire.ATTEMPT_KEY and isinstance(value, str):
                attempt, is_known = parse_attempt(value)
                self.misread[key] += not is_known
            elif key == wire.CUSTOMER_KEY:
                customer = str(value)
        return criticality, attempt, customer
