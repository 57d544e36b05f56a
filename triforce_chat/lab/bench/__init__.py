"""Benchmarks of speed and memory, and profiles of a round."""
