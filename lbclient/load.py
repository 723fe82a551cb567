"""The public name of `core.load`: what a picker knows of one backend."""

from lbclient.core.load import Load

__all__ = ["Load"]
