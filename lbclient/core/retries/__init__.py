"""What follows a failed attempt: its outcome, retries, hedging and their budgets."""
