"""From settings to a running engine: what to load, where it fits, and the loading itself."""
