"""Answering many questions, or many requests, one line of output each."""
