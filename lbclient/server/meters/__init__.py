"""Measurements of the machine: CPU, memory and contention."""
