"""Makes channels: lbclient's own or, with `LBCLIENT_DISABLE`, grpc.aio's.

A disabled program loads nothing that touches private parts of grpcio: what the two
kinds of channel need is imported here when one is made.
"""

from collections.abc import Sequence
from typing import Any, cast

import grpc

from lbclient import originals
from lbclient.client import kinds
from lbclient.config import ChannelConfig, is_disabled
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Resolver


def insecure_channel(
    target: str | Resolver,
    options: Sequence[tuple[str, Any]] | None = None,
    compression: grpc.Compression | None = None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] | None = None,
    *,
    config: ChannelConfig | None = None,
    name: str = "",
) -> "kinds.Channel":
    """Like `grpc.aio.insecure_channel`, with load balancing. See `Channel`.

    `config` has the settings, such as the picker. None: they come from `LBCLIENT_*`
    variables and the file that `LBCLIENT_CONFIG` names, or have their defaults.
    `name` is the channel's name in metrics, logs, statistics, on the status page and in
    the settings file, instead of the target: at most 100 printable characters.

    With `LBCLIENT_DISABLE=1` in the environment it returns grpc.aio's own channel,
    which has no `statistics()`, unless the target is a `Resolver`. A target of `file:`,
    `k8s:` or `srv:` is then resolved here, once: it may take up to 10 s, and raises
    ResolveError.
    """
    if isinstance(target, str) and originals.are_wanted():
        own = originals.insecure_channel(target, options, compression, interceptors)
        return cast("kinds.Channel", own)
    if isinstance(target, str) and is_disabled():
        from lbclient.client.disabled import plain_channel

        plain = plain_channel(target, None, options, compression, interceptors)
        return cast("kinds.Channel", plain)
    from lbclient.client.channel import Channel

    return Channel(target, None, options, compression, interceptors, config, name=name)


def secure_channel(
    target: str | Resolver,
    credentials: grpc.ChannelCredentials,
    options: Sequence[tuple[str, Any]] | None = None,
    compression: grpc.Compression | None = None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] | None = None,
    *,
    config: ChannelConfig | None = None,
    name: str = "",
) -> "kinds.Channel":
    """Like `grpc.aio.secure_channel`, with load balancing. See `insecure_channel`."""
    if not isinstance(credentials, grpc.ChannelCredentials):
        # None would be an insecure channel.
        raise ConfigError("credentials", credentials, "grpc.ChannelCredentials")
    if isinstance(target, str) and originals.are_wanted():
        make = originals.secure_channel
        own = make(target, credentials, options, compression, interceptors)
        return cast("kinds.Channel", own)
    if isinstance(target, str) and is_disabled():
        from lbclient.client.disabled import plain_channel

        plain = plain_channel(target, credentials, options, compression, interceptors)
        return cast("kinds.Channel", plain)
    from lbclient.client.channel import Channel

    return Channel(
        target, credentials, options, compression, interceptors, config, name=name
    )
