"""Makes the parts of a channel from its target, options and config: no I/O, no loop."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import grpc

from lbclient import originals
from lbclient.client.backend_context import Dial
from lbclient.config import ChannelConfig
from lbclient.config.identity import find_identity, home_zone
from lbclient.core.errors import ConfigError
from lbclient.core.model import Endpoint
from lbclient.core.protocols import Picker, PickerFactory, Resolver, Subset
from lbclient.core.routing.locality import PreferNear
from lbclient.core.routing.spillover import Spillover
from lbclient.core.text import printable
from lbclient.grpc_seam import Options, check_options, inner_options, option_pairs
from lbclient.pickers import picker_factory
from lbclient.resolvers import parse_target
from lbclient.resolvers.target import dial_target
from lbclient.subsets.numbered import Choice


@dataclass(frozen=True, slots=True)
class ChannelParts:
    """What a balancer is wired from. `spillover` makes a picker for several priorities,
    and `make_picker` the one that is used first."""

    target: str  # to be shown
    resolver: Resolver
    subset: Subset
    make_picker: Callable[[], Picker]
    spillover: PickerFactory
    dial: Dial


def parts_of(
    target: Any,
    credentials: grpc.ChannelCredentials | None,
    options: Options | None,
    compression: grpc.Compression | None,
    config: ChannelConfig,
    rng: Random,
) -> ChannelParts:
    """Raises ConfigError for an invalid target or option."""
    resolver, authority = _resolver(target, config, rng)
    options = option_pairs(options)
    check_options(options)
    if compression and not isinstance(compression, int):
        raise ConfigError("compression", compression, "a grpc.Compression")
    said = target if isinstance(target, str) else repr(target)
    inner = inner_options(
        options, authority, config.connect_backoff, config.max_connect_backoff
    )
    zone = home_zone(config)
    picker = picker_factory(
        config.picker,
        config.slow_start,
        config.hash_balance_factor,
        config.cache_miss_cost,
    )
    spillover = partial(Spillover, picker, zone, limits=config.spill_above)
    first: PickerFactory = spillover if zone else picker
    return ChannelParts(
        target=printable(said, len(said)),  # long, as a list of addresses is
        resolver=resolver,
        subset=PreferNear(_subset(config, rng), zone),
        make_picker=lambda: first(Random(rng.getrandbits(64))),
        spillover=spillover,
        dial=partial(_dial, credentials, inner, compression),
    )


def _resolver(target: Any, config: ChannelConfig, rng: Random) -> tuple[Resolver, str]:
    """The resolver of a target, and the authority of its calls."""
    if isinstance(target, str):
        return parse_target(target, resolve_interval=config.resolve_interval, rng=rng)
    if callable(getattr(target, "watch", None)):
        return target, ""
    want = "text such as 'dns:///name:50051', or a Resolver"
    raise ConfigError("target", target, want)


def _subset(config: ChannelConfig, rng: Random) -> Subset:
    if not isinstance(config.subset, str):
        return config.subset
    identity = find_identity(config.task_index)
    client_id = config.client_id
    if not client_id and identity.index is not None:
        client_id = f"{config.client_job}/{identity.index}"  # the same after a restart
    return Choice(
        config.subset,
        config.subset_size,
        identity,
        client_id or f"{rng.getrandbits(64):016x}",
        config.client_job,
    )


def _dial(
    credentials: grpc.ChannelCredentials | None,
    options: Options,
    compression: grpc.Compression | None,
    endpoint: Endpoint,
    more: Options = (),
) -> grpc.aio.Channel:
    if more:
        options = tuple((dict(options) | dict(more)).items())
    # By keyword, and looked up now: instrumentation replaces these functions.
    target = dial_target(endpoint.address)
    arguments: dict[str, Any] = {
        "target": target,
        "options": options,
        "compression": compression,
    }
    with originals.making():
        if credentials is None:
            return grpc.aio.insecure_channel(**arguments)
        return grpc.aio.secure_channel(credentials=credentials, **arguments)
