"""Admission: which requests are let in, refused, or wait for their turn."""
