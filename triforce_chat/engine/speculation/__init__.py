"""Speculative decoding: levels, drafters, named stacks, and the planner that chooses among them."""
