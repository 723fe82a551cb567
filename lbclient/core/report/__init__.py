"""What a server measures of its own load, for its load reports."""
