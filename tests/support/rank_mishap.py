"""``python mishap.py MODEL METHOD``: rank 0 of two, which sends the other rank an impossible call.

Prints the other rank's process id at that moment, then waits to be ended.
"""

from __future__ import annotations

import signal
import sys
import time

from triforce_chat.errors import RankLost
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.parallel.commands import Call
from triforce_chat.parallel.launcher import Launcher
from triforce_chat.parallel.rank_info import RankInfo
from triforce_chat.parallel.rendezvous import connect_workers
from triforce_chat.settings.settings import Settings


class Hungry:
    """Takes more memory than there is when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return bytearray, (1 << 62,)


def main(model: str, method: str) -> None:
    info = RankInfo(0, 0, 2, 2)
    workers, store = connect_workers(info)
    Launcher(info, workers, store).load(EngineSpec(Settings(model, "none", device="cpu", tp=2), 400))
    if method == "restack":  # as if a GPU waited for the other rank
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print(workers.processes[0].pid, flush=True)
    try:  # the other rank may be lost before the whole command is sent
        workers.send(Call(method, (Hungry() if method == "restack" else None,)))
        time.sleep(600)
    except RankLost as error:
        if error.claim_printing():
            print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
