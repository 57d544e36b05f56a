"""``python -m triforce_chat``, and the command ``triforce-chat``."""

from triforce_chat.bytecode import keep_bytecode


def main() -> None:
    """Run the program on the process's arguments."""
    keep_bytecode()  # before anything else is imported
    from triforce_chat.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
