"""The retry policy and the hedging of a channel, by its config."""

from random import Random

from lbclient.config import ChannelConfig
from lbclient.core.retries.hedging import Hedging
from lbclient.core.retries.retry import BURST, Budget, RetryPolicy
from lbclient.wire.method_config import is_idempotent


def retry_policy_of(config: ChannelConfig, rng: Random) -> RetryPolicy:
    # Enough for all that can be in flight on one backend when it dies.
    budget = Budget(burst=max(BURST, config.active_limit))
    return RetryPolicy(
        budget, rng, config.max_attempts, lambda path: _is_idempotent(path, config)
    )


def hedging_of(config: ChannelConfig, retry_policy: RetryPolicy) -> Hedging | None:
    """None: no call is hedged. A hedge takes from the retry policy's budget, too."""
    if not config.hedging:
        return None
    return Hedging(
        retry_policy,
        config.max_attempts,
        lambda path: _is_idempotent(path, config),
        config.hedging_budget,
        config.hedging_delay,
    )


def _is_idempotent(path: str, config: ChannelConfig) -> bool:
    return is_idempotent(path, config.idempotent)
