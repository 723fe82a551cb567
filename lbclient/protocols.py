"""What can be replaced: a channel's resolver, subset and picker, a server's stores."""

from lbclient.core.protocols import *  # noqa: F403
