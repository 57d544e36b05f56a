"""Computes how much memory a model takes at a context length, before anything is loaded."""
