"""How a channel learns of a backend's state and load without sending it calls."""
