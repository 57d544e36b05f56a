"""``python mishap.py MODEL METHOD``: rank 0 of two, the other of which is told something impossible.

Prints the other rank's process id at that moment, then waits for what comes.
"""

from __future__ import annotations

import signal
import sys
import time

from triforce_chat.errors import RankLost
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.parallel.lead import Lead
from triforce_chat.parallel.orders import Call
from triforce_chat.parallel.place import Place
from triforce_chat.parallel.start import gathered
from triforce_chat.settings.settings import Settings


class Hungry:
    """Takes more memory than there is wherever it arrives."""

    def __reduce__(self) -> tuple[object, ...]:
        return bytearray, (1 << 62,)


def main(model: str, method: str) -> None:
    place = Place(0, 0, 2, 2)
    team, store = gathered(place)
    Lead(place, team, store).load(EngineSpec(Settings(model, "none", device="cpu", tp=2), 400))
    if method == "restack":  # as if a GPU waited for the other rank
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print(team.started[0].pid, flush=True)
    try:  # the other rank may be lost before this one has told all of the order
        team.tell(Call(method, (Hungry() if method == "restack" else None,)))
        time.sleep(600)
    except RankLost as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
