"""How much memory a model takes at a context, before anything of it is loaded."""
