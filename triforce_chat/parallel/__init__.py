"""Tensor parallelism: one model split over several processes. Rank 0 serves the user, the others mirror its calls."""
