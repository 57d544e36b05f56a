"""Files that outlive the program: sessions, and keys and values of documents."""
