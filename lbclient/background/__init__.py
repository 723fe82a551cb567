"""Work beside the calls: tasks that live again, and work in slices."""
