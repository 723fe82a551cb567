"""Counts and means, most of which fade with time: arithmetic that the rest shares."""
