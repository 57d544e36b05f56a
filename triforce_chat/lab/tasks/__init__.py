"""Texts with known answers: planted facts, questions about books, invented conversations and reports."""
