"""Algorithms that give each client its own few backends, one a file."""

from lbclient.subsets.rendezvous import Rendezvous

__all__ = ["Rendezvous"]
