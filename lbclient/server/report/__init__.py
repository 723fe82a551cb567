"""What a task tells of itself, and to whom."""
