"""Sessions: conversations written to SQLite while they happen, to be listed, searched and continued later."""
