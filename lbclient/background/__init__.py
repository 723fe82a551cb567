"""Background tasks and timers that survive failures, and work in slices."""
