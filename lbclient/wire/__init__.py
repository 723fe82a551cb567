"""What travels between client and server: keys, load reports, health, datagrams.

`from lbclient import wire` has what keys, reports, health_reports and trailers offer.
"""

from lbclient.wire.health_reports import (
    MOST_SHARED_PORTS,
    MOST_WORKERS,
    Health,
    UdpSession,
    parse_health,
)
from lbclient.wire.keys import (
    ATTEMPT_KEY,
    CHECK_METHOD,
    COST_KEY,
    CRITICALITY_KEY,
    CUSTOMER_KEY,
    DECLINE_KEY,
    LOAD_KEY,
    ORCA_KEY,
    ORCA_METHOD,
    PUSHBACK_KEY,
    REFUSAL_KEY,
    SERVING_CHECK_METHOD,
    SERVING_WATCH_METHOD,
    STOCK_ATTEMPT_KEY,
    WATCH_METHOD,
)
from lbclient.wire.reports import (
    cost_field,
    find_report,
    from_message,
    parse_report,
    sound,
)
from lbclient.wire.trailers import (
    find_cost,
    find_customer,
    find_refusal,
    read_trailers,
)

__all__ = [
    "ATTEMPT_KEY",
    "CHECK_METHOD",
    "COST_KEY",
    "CRITICALITY_KEY",
    "CUSTOMER_KEY",
    "DECLINE_KEY",
    "LOAD_KEY",
    "MOST_SHARED_PORTS",
    "MOST_WORKERS",
    "ORCA_KEY",
    "ORCA_METHOD",
    "PUSHBACK_KEY",
    "REFUSAL_KEY",
    "SERVING_CHECK_METHOD",
    "SERVING_WATCH_METHOD",
    "STOCK_ATTEMPT_KEY",
    "WATCH_METHOD",
    "Health",
    "UdpSession",
    "cost_field",
    "find_cost",
    "find_customer",
    "find_refusal",
    "find_report",
    "from_message",
    "parse_health",
    "parse_report",
    "read_trailers",
    "sound",
]
