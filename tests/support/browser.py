"""A headless Chromium that a test drives through a pipe, by the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--remote-debugging-pipe",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ),
)
HIGH = 50  # a descriptor above all that shells use
PATIENCE = 60.0  # seconds until a test fails


class Page:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._held, self._number = commands, answers, b"", 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        said = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            said["sessionId"] = self._session
        os.write(self._commands, json.dumps(said).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._held += part
        message, _, self._held = self._held.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        return received

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < deadline, self.run("document.body?.innerText")
            time.sleep(0.05)

    def open(self, url: str, width: int, height: int) -> None:
        """Show a page in a window of that size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Page.navigate", url=url)
        self.until(f"location.href == {json.dumps(url)} && document.readyState == 'complete'")

    def picture(self, path: Path) -> None:
        """Save what the window shows."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with an empty profile in ``folder``."""
    (low_in, commands), (answers, low_out) = os.pipe(), os.pipe()
    # The browser reads from descriptor 3 and writes to 4, which must not be taken while they are given to it.
    their_in, their_out = (fcntl.fcntl(each, fcntl.F_DUPFD, HIGH) for each in (low_in, low_out))
    os.close(low_in)
    os.close(low_out)
    move = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
    begun = subprocess.Popen(
        ["bash", "-c", move, str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(their_in, their_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Page(commands, answers)
    finally:
        begun.kill()
        begun.wait()
        os.close(commands)
        os.close(answers)
