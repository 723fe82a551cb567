"""What customers may use, what they used, and where that is kept."""
