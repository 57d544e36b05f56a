"""From a name to a model in memory: fetching, caching, resolving, loading.

Only ``load`` and ``convert`` need torch; they are imported when a model is wanted, not before.
"""
