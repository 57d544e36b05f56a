"""The checks of the ``doctor`` command."""
