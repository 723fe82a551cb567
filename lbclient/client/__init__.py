"""The client's side: a channel that balances calls over many backends."""
