"""Where quotas of several servers may be kept: see `ServerConfig.quota_store`."""

from lbclient.server.quotas.stores import MemoryStore

__all__ = ["MemoryStore"]
