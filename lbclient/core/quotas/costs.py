"""What requests cost in CPU seconds: each request, and in sum by method and customer.

The cost of a request is the CPU time that it took, normalized by what a CPU second of
this machine is worth (SRE book, ch. 21, "The Pitfalls of Queries per Second").
Customers' names come from requests, so the number of sums is bounded: customers beyond
it share one.
"""

from collections.abc import Iterable

from lbclient.core.quotas.quota import OTHERS, is_name
from lbclient.core.quotas.quota_account import Payer

MOST = 100  # customers with a sum of their own, beside those that the config lists


Method = tuple[str, str]
"""As `CallCounts` has it: its kind and path; both empty for all beyond its bound."""


class Total:
    """Normalized CPU seconds."""

    __slots__ = ("cpu",)

    def __init__(self) -> None:
        self.cpu = 0.0

    def __repr__(self) -> str:
        return f"<{self.cpu:.3f} CPU seconds>"


class RequestCost:
    """The CPU seconds of one request so far, normalized, and who pays for them.

    Used on the server's loop only. `factor` is what a CPU second of this machine is
    worth; `method` is that of the handler, None until it begins; `payer` is None where
    there are no quotas.
    """

    __slots__ = ("cpu", "customer", "factor", "method", "payer")

    def __init__(
        self, customer: Total, payer: Payer | None = None, factor: float = 1.0
    ) -> None:
        self.factor = factor
        self.cpu = 0.0
        self.customer = customer
        self.payer = payer
        self.method: Total | None = None

    def pay(self, cpu: float) -> None:
        """Adds CPU seconds of this machine; also after the request's end, as of tasks
        that it left."""
        cpu *= self.factor
        self.cpu += cpu
        self.customer.cpu += cpu
        if self.method is not None:
            self.method.cpu += cpu
        if self.payer is not None:
            self.payer.cpu += cpu

    def __repr__(self) -> str:
        return f"<{self.cpu:.6f} CPU seconds>"


class Costs:
    """The sums of one server. Written on its loop, read in any thread.

    `factor` may change; requests are normalized by what it was when they began.
    """

    def __init__(self, factor: float = 1.0, listed: Iterable[str] = ()) -> None:
        self.factor = factor
        self._customers = {name: Total() for name in (OTHERS, *listed)}
        self._most = len(self._customers) + MOST
        self._methods: dict[Method, Total] = {}

    def begin(self, customer: str, payer: Payer | None = None) -> RequestCost:
        total = self._customers.get(customer) or self._place(customer)
        return RequestCost(total, payer, self.factor)

    def _place(self, customer: str) -> Total:
        if len(self._customers) >= self._most or not is_name(customer):
            customer = OTHERS
        return self._customers.setdefault(customer, Total())

    def of_method(self, method: Method) -> Total:
        """The sum of a method, for its requests. The caller bounds the methods."""
        return self._methods.setdefault(method, Total())

    def by_method(self) -> dict[Method, float]:
        """Normalized CPU seconds so far."""
        methods = list(self._methods.items())
        return {method: total.cpu for method, total in methods}

    def by_customer(self) -> dict[str, float]:
        """Normalized CPU seconds so far; those without a sum of their own are ''."""
        customers = list(self._customers.items())
        return {name: total.cpu for name, total in customers}

    def __repr__(self) -> str:
        count = len(self._customers)
        return f"<costs of {len(self._methods)} methods and {count} customers>"
