"""Where quotas of several servers may be kept: see `ServerConfig.quota_store`."""

from lbclient.server.quotas.memory_store import MemoryStore

__all__ = ["MemoryStore"]
