"""One of the processes that ``test_training_context`` starts: model folder, folder for the result."""

from __future__ import annotations

import sys
from pathlib import Path

from schooling import builder_of, load
from test_training_context import training

from triforce_chat.training import context
from triforce_chat.training.ranks import joined

context.TOKENS_PER_QUESTION = 600
with joined("cpu") as ranks:
    loaded = load(Path(sys.argv[1]))
    made = training(loaded, builder_of(loaded), Path(sys.argv[2]), steps=1)
    made.ranks = ranks
    made.run(lambda _: None)
