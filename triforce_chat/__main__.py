"""``python -m triforce_chat``."""

from triforce_chat.cli import main

main()
