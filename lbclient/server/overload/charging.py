"""Who pays for a request, what it costs, and whether a quota has room for it.

Connects what measures CPU time (`cpu_timing`, the machine's speed), what adds it up
(`core.quotas.costs`) and what limits it (`quota_enforcer`). A server without quotas and
without `ServerConfig.request_cost` measures and charges nothing.
"""

import asyncio
from dataclasses import replace

from lbclient.config import ServerConfig
from lbclient.core.criticality import Criticality, current_or_default
from lbclient.core.overload.concurrency import RequestOutcome
from lbclient.core.protocols import Clock
from lbclient.core.quotas.costs import Costs
from lbclient.core.quotas.customer import adopt
from lbclient.core.quotas.quota import OTHERS
from lbclient.core.refusal import Refusal
from lbclient.server.meters.machine_speed import OF_PROCESS
from lbclient.server.meters.user_signals import UserSignals
from lbclient.server.overload.adaptive import note_outcome
from lbclient.server.overload.refusal_counts import RefusalCounts
from lbclient.server.overload.refusal_status import OUT_OF_QUOTA, RefusalStatus
from lbclient.server.quotas.cpu_timing import CpuTiming, Nesting, bill_to
from lbclient.server.quotas.quota_enforcer import QuotaEnforcer, customer_of_identity
from lbclient.server.statistics import QuotaStatistics, ServerStatistics


class Charging:
    """Charges requests to customers, and refuses those beyond a quota. Owned by the
    gate, used on its loop's thread only.

    `quotas` and `costs` are None where nothing is limited, or measured. `asks_context`:
    who pays is known only later than all else, from the request's context. Then
    `early_quotas` and `early_costs`, for who is charged by metadata, are None, too.
    """

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        own: UserSignals,
        refusals: RefusalCounts,
    ) -> None:
        self._clock = clock
        self._own = own
        self._refusals = refusals
        has_quotas = config.quotas is not None or config.default_quota is not None
        self.quotas = QuotaEnforcer(config, clock) if has_quotas else None
        # What requests cost is what quotas limit.
        factor = config.cpu_factor
        self.costs = (
            Costs(1.0 if factor is None else factor, config.quotas or ())
            if has_quotas or config.request_cost
            else None
        )
        self._measures_speed = self.costs is not None and factor is None
        self._cpu_timing = CpuTiming()
        self.nesting = Nesting()  # of the loop, once started
        named = config.customer
        self._customer = customer_of_identity if isinstance(named, str) else named
        # Without quotas it is asked for, too: the request's own calls inherit that, and
        # never a mere claim.
        self.asks_context = config.customer is not None
        self.early_quotas = None if self.asks_context else self.quotas
        self.early_costs = None if self.asks_context else self.costs

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._measures_speed:
            OF_PROCESS.start()
            self.take_speed()
        if self.costs is not None:
            self.nesting = self._cpu_timing.install(loop)
        if self.quotas is not None:
            self.quotas.start()

    def stop(self) -> None:
        self._cpu_timing.remove()
        if self.quotas is not None:
            self.quotas.stop()

    def sample_speed(self, now: float) -> None:
        if self._measures_speed:
            OF_PROCESS.sample(now)

    def take_speed(self) -> None:
        """What a second of this machine is worth now."""
        if self._measures_speed and self.costs is not None:
            self.costs.factor = OF_PROCESS.factor

    def charge(self, customer: str, criticality: Criticality) -> RefusalStatus | None:
        """Begins a customer's request; the status to refuse it with if its quota is
        used up."""
        quotas, costs, payer = self.quotas, self.costs, None
        if quotas is not None:
            clock = self._clock
            payer = quotas.enter(customer, criticality, clock())
            if payer is None:
                note_outcome(RequestOutcome.FAILED)
                return self.out_of_quota(criticality)
        assert costs is not None
        bill_to(costs.begin(customer, payer))
        return None

    def running_cpu(self) -> float:
        """CPU seconds of the handler's step that runs, charged to nobody yet."""
        return self.nesting.running()

    def out_of_quota(self, criticality: Criticality) -> RefusalStatus:
        self._refusals.count(Refusal.QUOTA.value, criticality, is_for_load=False)
        return OUT_OF_QUOTA

    def asks(self, context: object) -> RefusalStatus | None:
        """Charges who `ServerConfig.customer` names. Returns as `charge` does.

        To be called in the request's context, where it sets the customer.
        """
        assert self._customer is not None
        try:
            customer = self._named(self._customer(context))
        except Exception as error:
            self._own.complain("customer", f"raised {error!r}")
            customer = OTHERS
        adopt(customer)
        if self.costs is None:
            return None
        return self.charge(customer, current_or_default())

    def _named(self, said: object) -> str:
        """The customer's name as text; None, or another type, means no customer."""
        if isinstance(said, bytes):
            return said.decode(errors="replace")
        if isinstance(said, str):
            return said.encode(errors="replace").decode()
        if said is not None:
            self._own.complain("customer", f"returned a {type(said).__name__}")
        return OTHERS

    def complete(self, statistics: ServerStatistics) -> ServerStatistics:
        """Adds to the statistics what is charged to whom."""
        quotas, costs = self.quotas, self.costs
        return replace(
            statistics,
            usage={} if quotas is None else quotas.usage(),
            cpu_factor=1.0 if costs is None else costs.factor,
            method_costs={} if costs is None else costs.by_method(),
            customer_costs={} if costs is None else costs.by_customer(),
            quotas=QuotaStatistics() if quotas is None else quotas.statistics(),
            task_failures=0 if quotas is None else quotas.task_failures,
        )

    def __repr__(self) -> str:
        return f"<charges {self.quotas!r}, {self.costs!r}>"
