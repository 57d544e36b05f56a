"""A path or standard input becomes a title and numbered pages; nothing is dropped without a word."""
