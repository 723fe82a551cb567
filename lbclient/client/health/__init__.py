"""How a channel learns of a backend's state and load without sending it calls.

Start with `watch`, which reads streams, and `check`, which asks one question;
`refused_services` says what becomes of methods that a backend does not have.
"""
