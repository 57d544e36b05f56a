"""``python -m triforce_chat``."""

from triforce_chat.cli.app import main

main()
