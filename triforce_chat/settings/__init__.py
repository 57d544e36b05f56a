"""Every setting: its declaration, and its value from flags, environment and configuration file; paths."""
