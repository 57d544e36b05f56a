"""A conversation over documents: transcript, chat template, sources, citations and JSON records."""
