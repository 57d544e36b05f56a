"""Finds, downloads, converts, caches and loads models by name.

Only ``load`` and ``convert`` need torch; they are imported only when a model is loaded.
"""
