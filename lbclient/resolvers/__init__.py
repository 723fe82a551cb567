"""Where endpoints come from; `target` reads the strings.

A file for each source; the other files are parts that some sources share.
"""

from lbclient.resolvers.dns import Dns
from lbclient.resolvers.file import File
from lbclient.resolvers.srv import Srv
from lbclient.resolvers.static import Static
from lbclient.resolvers.target import Target, parse_target

__all__ = ["Dns", "File", "Srv", "Static", "Target", "parse_target"]
