"""Commands for planning and learning: demo, simulator, subset calculator."""
