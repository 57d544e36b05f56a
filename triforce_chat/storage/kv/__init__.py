"""Keys and values of what was read, kept on the disk, so that a book that is opened again need not be read again."""
