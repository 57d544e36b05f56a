"""Conversations that outlive the program: written to SQLite while they happen, found and continued later."""
