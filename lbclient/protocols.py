"""Public names of `core.protocols`: what users can replace, and by what shape."""

from lbclient.core.protocols import *  # noqa: F403
