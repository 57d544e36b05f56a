"""A path or standard input becomes a title and numbered pages; nothing is dropped without a word."""

from triforce_chat.documents.model import Document, Heading, Page
from triforce_chat.documents.ranges import PageRange, parse_pages, runs
from triforce_chat.documents.reader import read

__all__ = ["Document", "Heading", "Page", "PageRange", "parse_pages", "read", "runs"]
