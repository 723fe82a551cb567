"""What a picker knows of one backend."""

from lbclient.core.load import Load

__all__ = ["Load"]
