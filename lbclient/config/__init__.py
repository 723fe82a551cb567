"""Every setting with its default and where that comes from.

Frozen and checked at construction: a config that exists is sound. Values come from
code, else from the TOML file that `LBCLIENT_CONFIG` names, else from `LBCLIENT_*`
variables; a variable beats the file. A config knows where each value is from.
"""

from lbclient.config.channel import ChannelConfig
from lbclient.config.fields import settings
from lbclient.config.server import ServerConfig
from lbclient.config.sources import RESERVED, is_disabled

__all__ = ["RESERVED", "ChannelConfig", "ServerConfig", "is_disabled", "settings"]
