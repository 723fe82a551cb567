"""Who pays for a request: a name, by which servers keep accounts of quotas.

It is set near the user, and a request's own calls inherit it, as they do its
criticality: so each layer charges whom the first one serves. SRE book, ch. 21,
"Per-Customer Limits".
"""

from contextvars import ContextVar

from lbclient.core.errors import ConfigError
from lbclient.core.quotas.quota import LONGEST
from lbclient.core.scope import Scope

WANT = f"a name of 1 to {LONGEST} printable ASCII characters, no space at its ends"

_current: ContextVar[str | None] = ContextVar("customer", default=None)


class Inherited(str):
    """The name of a request's customer, which its own calls have unless told not to."""

    __slots__ = ()


def is_sendable(name: str) -> bool:
    """Whether a name has an account, and arrives as it was sent.

    gRPC refuses other values of metadata than printable ASCII, and proxies strip spaces
    at the ends.

    >>> is_sendable("spiffe://prod/mail"), is_sendable("mail "), is_sendable("Käufer")
    (True, False, False)
    """
    is_short = 0 < len(name) <= LONGEST
    return is_short and name.isascii() and name.isprintable() and name == name.strip()


def checked(field: str, value: object) -> str:
    """A customer's name, of a setting. Raises ConfigError for what cannot be sent."""
    if isinstance(value, str) and is_sendable(value):
        return str(value)  # of one that was inherited, too, a name of its own
    raise ConfigError(field, value, WANT)


class customer(Scope):
    """Sets the customer of calls made in a block or function, and in tasks started
    there.

    Servers charge the calls to the customer's quota. Use it around a block, or as the
    decorator of a function of any kind. Raises ConfigError for a name that cannot be
    sent: a name has 1 to 100 printable ASCII characters, without a space at either end.

    >>> with customer("mail"):
    ...     current()
    'mail'
    """

    _current = _current
    _before = ContextVar("customers before", default=None)

    def __init__(self, name: str) -> None:
        self._value = checked("customer", name)


def adopt(name: str | None) -> None:
    """Sets the customer of the request that the task serves.

    None and a name that cannot be sent: its own calls have none of it.
    """
    _current.set(Inherited(name) if name and is_sendable(name) else None)


def payer(default: str | None, inherits: bool) -> str | None:
    """The customer for a call that names none; `default` is its channel's customer."""
    name = _current.get()
    if name is None or not (inherits or type(name) is not Inherited):
        return default
    return name


current = _current.get
"""The customer of the request served, or that of `customer`; or None."""
