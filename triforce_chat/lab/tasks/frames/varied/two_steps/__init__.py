"""Pairs of statements that answer a question only together; many questions look as if one were enough.

A model takes "What does the sister of ... sell?" for a question of one step and replies with the sister.
"""

from triforce_chat.lab.tasks.frames.varied.two_steps.journeys import JOURNEYS
from triforce_chat.lab.tasks.frames.varied.two_steps.kin import KIN
from triforce_chat.lab.tasks.frames.varied.two_steps.leisure import LEISURE
from triforce_chat.lab.tasks.frames.varied.two_steps.mixed import MIXED
from triforce_chat.lab.tasks.frames.varied.two_steps.public_life import PUBLIC_LIFE
from triforce_chat.lab.tasks.frames.varied.two_steps.trade import TRADE

TWO_STEPS = (*MIXED, *KIN, *TRADE, *PUBLIC_LIFE, *JOURNEYS, *LEISURE)
