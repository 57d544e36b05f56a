"""KV caches: full, quantized, retrieval, streaming and evicting ones, and where their entries are stored."""
