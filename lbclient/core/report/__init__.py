"""What a server measures of its own load, for its load reports."""

SMOOTHING = 2.0  # seconds; the default of servers, see `ServerConfig.smoothing`
