"""One of the processes that ``test_training_context`` starts: model folder, folder for the results.

Keeps its first averaged gradients, and what it has learnt after three steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from support.trained_models import builder_of, load, training
from triforce_chat.lab.training import context
from triforce_chat.lab.training.ranks import joined

context.TOKENS_PER_QUESTION = 600
with joined("cpu") as ranks:
    loaded, out = load(Path(sys.argv[1])), Path(sys.argv[2])
    made = training(loaded, builder_of(loaded), out / "two", steps=3)
    made.ranks, trained = ranks, made.optimizer.parameters
    made._step(made._examples(0)[1])
    ranks.average(trained)
    gradients = [parameter.grad for parameter in trained]
    made.optimizer.adam.zero_grad(set_to_none=True)
    made.run(lambda _: None)
    torch.save((gradients, [parameter.detach() for parameter in trained]), out / f"rank-{ranks.rank}.pt")
