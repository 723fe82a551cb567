"""Commands for who plans one, or wants to learn."""
