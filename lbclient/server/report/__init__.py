"""What a server reports about itself: load, health and state, in streams and by UDP."""
