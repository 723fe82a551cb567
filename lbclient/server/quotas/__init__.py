"""Quotas by customer: accounting of CPU time, shares, and the stores behind them."""
