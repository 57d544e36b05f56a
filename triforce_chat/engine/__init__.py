"""The decoder: from a request of token ids to events, by speculative decoding. Start reading at ``engine.py``."""
