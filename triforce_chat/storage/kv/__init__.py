"""A document cache on the disk: stored keys and values let a book that is opened again skip its prefill."""
