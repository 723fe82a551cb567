"""What is counted and remembered, for metrics and the status page."""
