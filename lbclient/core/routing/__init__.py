"""Which backends a call may go to, before a picker picks: zones, spill-over, keys."""
