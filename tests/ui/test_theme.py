from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType
from support.fakes import LIMIT, answer_events

from triforce_chat.ui.compare import Columns
from triforce_chat.ui.markdown import RenderedMarkdown
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.theme import THEME

EVERYTHING = """# One
## Two
### Three
#### Four

*emphasis* **strong** `code` [link](http://x.org)

> quotation

1. item
- bullet

| head | er |
|---|---|
| cell | cell |

```python
class Word(int):  # a comment
    text = "string" + str(0x7f)
```

    indented
"""


def panel(reading: bool) -> EnginePanel:
    made = EnginePanel("stack", LIMIT)
    for event in answer_events("some text")[: 2 if reading else 9]:
        made.add(event)
    return made


def comparison() -> Columns:
    columns = Columns(LIMIT)
    for event in answer_events(EVERYTHING):
        columns.add("speculative", event)
    columns.end()
    return columns


@pytest.mark.parametrize("shown", [RenderedMarkdown(EVERYTHING), panel(True), panel(False), comparison()])
def test_no_word_depends_on_a_colour(shown: RenderableType) -> None:
    """So everything can be read on a white background as on a black one."""
    console = Console(file=io.StringIO(), width=80, height=24, color_system="truecolor", theme=THEME)
    words = 0
    for line in console.render_lines(shown):
        for text, style, _ in line:
            if any(char.isalnum() for char in text):
                words += 1
                assert style is None or (style.color, style.bgcolor) == (None, None), (text, style)
    assert words > 3
