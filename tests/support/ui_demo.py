"""A chat with a scripted conversation on a real terminal, for tests and for looking at it.

``python ui_demo.py [PAUSE [HISTORY]]``: an event comes every PAUSE seconds. With HELD_AT=TEXT in the environment no
answer goes beyond this text until the file GO_ON exists, so that a test need not be quick.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from rich.console import Console

from support.fakes import ScriptedConversation
from triforce_chat.chat.events import ChatEvent
from triforce_chat.cli.failures import ended_by_signals
from triforce_chat.documents import Document, Page
from triforce_chat.engine.events import Text, Verified
from triforce_chat.ui.repl import Labels, Repl
from triforce_chat.ui.terminal import Interrupt, Screen

ANSWER = """# What the book says

The captain *never* names the harbour. He says it twice, once in the first chapter and once
on the last page, where the lamp goes out, and each time the mate writes it down in the log.

1. The first chapter has the ship.
2. The second has the storm, which goes on for many a page and breaks two of the three masts.

| page | event |
|---|---|
| 3 | the ship |
| 12 | the storm |

```python
def harbour(book: str) -> str:
    return book[-1]
```

And \x1b[31mred\x1b[0m \x1b]0;title\x07is not red. The end.
"""


class Held(ScriptedConversation):
    """Its engine works on at a certain text, and says nothing new, until a file exists."""

    def _slowly(self, events: Sequence[ChatEvent]) -> Generator[ChatEvent, None, None]:
        text, go_on, said = os.environ.get("HELD_AT", ""), Path(os.environ.get("GO_ON", os.devnull)), ""
        for event in super()._slowly(events):
            yield event
            said += event.text if isinstance(event, Text) else ""
            while text and text in said and not go_on.exists():
                time.sleep(0.03)
                yield Verified("retrieval", 6, 4)


def read_document(path: str, _pages: str | None) -> Document:
    return Document(Path(path).name, path, (Page(1, "It was night.\n"), Page(2, ""), Page(3, "It was day.")))


def main() -> int:
    pause = float(sys.argv[1]) if len(sys.argv) > 1 else 0.02
    history = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    screen = Screen.of(Console(), Console(stderr=True))
    conversation = Held(*[ANSWER] * 9, pause=pause)
    labels = Labels("llama-7b", "retrieval 4,096 + 68m")
    Interrupt.WINDOW = 60.0  # seconds; a busy machine may show late what the first Ctrl-C did
    with ended_by_signals():
        return Repl(conversation, read_document, screen, lambda: labels, history).run()


if __name__ == "__main__":
    sys.exit(main())
