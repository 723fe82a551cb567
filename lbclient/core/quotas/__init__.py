"""What each customer may use of a fleet, and what its requests cost."""
