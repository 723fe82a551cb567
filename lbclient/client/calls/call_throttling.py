"""Asks and tells a channel's throttling of one call, with the customer who pays for it.

`core.throttles.throttling` decides. The customer is read from a call's metadata, and
only while one of them is out of quota.
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
    """Why a call is not worth sending. Asked only while `throttling.is_active`.

    `metadata` says who pays; without, no customer is looked at.
    """
    customer = find_customer(metadata) if throttling.has_customers else OTHERS
    held = throttling.refusal(criticality, customer, now)
    if held is None:
        return None
    return (OutOfQuota if held.is_quota else Throttled).because(held.why)


def observe(
    throttling: Throttling, attempt: "Attempt", outcome: Outcome, now: float
) -> None:
    """What an attempt teaches. As `Throttling.observe`."""
    is_asked = throttling.has_customers or outcome.refusal is QUOTA
    customer = find_customer(attempt.metadata) if is_asked else OTHERS
    throttling.observe(attempt.criticality, outcome, customer, now)
