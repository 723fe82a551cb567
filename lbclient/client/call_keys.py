"""Finds out what the picker is told of each call, where it wants to know.

A channel whose picker has no `pick_for` has no `CallKeys`, and pays one comparison.
"""

from typing import Any

from lbclient.core.call_hints import CallHints, current
from lbclient.core.criticality import Criticality


class CallKeys:
    """Makes the hints of calls. Owned by a balancer."""

    def hints(
        self, path: str, request: Any, metadata: Any, criticality: Criticality
    ) -> CallHints:
        """What a picker may know of a call that is about to be sent."""
        said = current()
        if said is None:
            return CallHints(path, (), criticality)
        return CallHints(path, said.keys, criticality, said.cost)
