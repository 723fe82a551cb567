"""Client-side load balancing for asyncio gRPC."""

from lbclient.channel import Channel, info, insecure_channel, secure_channel
from lbclient.config import ChannelConfig, ServerConfig

__all__ = [
    "Channel",
    "ChannelConfig",
    "ServerConfig",
    "info",
    "insecure_channel",
    "secure_channel",
]
