"""A command with a model in the dimensions of a larger one, as ``bench --inflate`` has it, to measure a server.

    python -m support.inflated llama-2-7b serve book.txt --model small

Its answers are those of the model itself, and take as long as those of a model of that size.
"""

from __future__ import annotations

import sys
from functools import partial

from triforce_chat.cli.app import main as run
from triforce_chat.loading import spec
from triforce_chat.models.shapes import find_shape


def main() -> None:
    name, *words = sys.argv[1:]
    # Commands make theirs when they run, and know no shape.
    spec.EngineSpec = partial(spec.EngineSpec, shape=find_shape(name))  # type: ignore[misc, assignment]
    sys.argv = ["triforce-chat", *words]
    run()


if __name__ == "__main__":
    main()
