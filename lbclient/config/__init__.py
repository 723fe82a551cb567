"""The settings of channels and servers, each declared once, with its reason.

A config is frozen and checked when it is made: a config that exists is sound. Values
come from code, else from `LBCLIENT_*` variables and the TOML file that
`LBCLIENT_CONFIG` names; a variable beats the file. A config knows where each value is
from. `channel` and `server` declare settings, `fields` says what a setting is, `kinds`
what values it may have, and `sources` reads files and the environment.
"""

from lbclient.config.channel import ChannelConfig
from lbclient.config.fields import find_setting, settings
from lbclient.config.server import ServerConfig
from lbclient.config.sources import RESERVED, is_disabled

__all__ = [
    "RESERVED",
    "ChannelConfig",
    "ServerConfig",
    "find_setting",
    "is_disabled",
    "settings",
]
