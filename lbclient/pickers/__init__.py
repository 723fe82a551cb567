"""Policies that choose among ready backends, one a file."""
