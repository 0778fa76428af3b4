"""A line on the terminal when work takes long; silence otherwise, and always where standard error is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 3.0


@contextmanager
def long_work(what: str) -> Iterator[None]:
    """Says ``what`` and the seconds so far on a terminal, from ``PATIENCE_SECONDS`` on, until the block ends."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    started = time.monotonic()

    def report() -> None:
        shown = False
        while not done.wait(PATIENCE_SECONDS if not shown else 1.0):
            shown = True
            sys.stderr.write(f"\r\x1b[Ktorch_tpu: {what} … {time.monotonic() - started:.0f} s")
            sys.stderr.flush()
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    watcher = threading.Thread(target=report, name="torch_tpu progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
