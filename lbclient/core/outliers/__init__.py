"""Backends that differ from the others: by errors, or by what requests cost."""
