"""Connects one call, and the customer who pays for it, with its channel's throttling.

`core.throttles.throttling` decides. The customer is read from the call's metadata, but
only while some customer is out of quota.
"""

from typing import TYPE_CHECKING, Any

from lbclient.core.criticality import Criticality
from lbclient.core.model import Outcome
from lbclient.core.quotas.quota import OTHERS
from lbclient.core.refusal import Refusal
from lbclient.core.throttles.throttling import Throttling
from lbclient.wire import find_customer
from lbclient.wire.local_errors import OutOfQuota, Throttled

if TYPE_CHECKING:
    from lbclient.client.calls.attempt import Attempt

QUOTA = Refusal.QUOTA


def refusal(
    throttling: Throttling, criticality: Criticality, now: float, metadata: Any = None
) -> Throttled | None:
    """The error of a call that is not worth sending; None: it is sent. To be called
    only while `throttling.is_active`.

    `metadata` names the customer; without it no customer's quota is looked at.
    """
    customer = find_customer(metadata) if throttling.has_customers else OTHERS
    held = throttling.refusal(criticality, customer, now)
    if held is None:
        return None
    return (OutOfQuota if held.is_quota else Throttled).because(held.why)


def observe(
    throttling: Throttling, attempt: "Attempt", outcome: Outcome, now: float
) -> None:
    """Passes an attempt's outcome to `Throttling.observe`, with its customer."""
    is_asked = throttling.has_customers or outcome.refusal is QUOTA
    customer = find_customer(attempt.metadata) if is_asked else OTHERS
    throttling.observe(attempt.criticality, outcome, customer, now)
