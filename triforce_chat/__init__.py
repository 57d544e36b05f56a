"""Chat with whole books through exact hierarchical speculative decoding (TriForce, arXiv 2404.11912)."""

__version__ = "0.2.0"
