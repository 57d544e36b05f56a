"""The alarm of a step that takes too long rings again where its exception was dropped."""

from __future__ import annotations

import subprocess
import sys

BURNING = """
import time
from triforce_chat.documents import alarm

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

class Ending:
    def __del__(self):
        burn(0.2)  # the alarm rings here, where its exception is dropped

alarm.AGAIN = 0.1
try:
    with alarm.at_most(0.1):
        Ending()
        burn(60)
except alarm.Late:
    print("late")
burn(0.5)  # it rings no more
print("on time")
"""


def test_an_alarm_that_rings_in_a_destructor_is_not_lost() -> None:
    # In a process of its own: pytest reports dropped exceptions.
    done = subprocess.run([sys.executable, "-c", BURNING], capture_output=True, text=True, check=True)
    assert done.stdout == "late\non time\n"
