"""What deferred execution did with a block of code: ``torch.tpu.fusion_report()``; and a warning when it cannot do much."""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType

log = logging.getLogger(__name__)

STORM_FLUSHES = 64  # this many host reads from one line, of short traces, are reported
SHORT_TRACE = 16
STORM_REASON = "a value is read"


@dataclass(frozen=True)
class Flush:
    """One run of recorded ops. Seconds are of the host; ``outcome`` is fused, compiled (and run), one by one, or dropped."""

    reason: str
    outcome: str
    ops: int
    results: int
    compile_seconds: float
    seconds: float
    line: str


@dataclass
class FusionReport:
    """All flushes of a block, in order."""

    flushes: list[Flush] = field(default_factory=list)

    @property
    def ops(self) -> int:
        return sum(flush.ops for flush in self.flushes)

    @property
    def compilations(self) -> int:
        return sum(flush.outcome == "compiled" for flush in self.flushes)

    @property
    def reasons(self) -> dict[str, int]:
        return dict(collections.Counter(flush.reason for flush in self.flushes).most_common())

    def __str__(self) -> str:
        compiling = sum(flush.compile_seconds for flush in self.flushes)
        running = sum(flush.seconds for flush in self.flushes) - compiling
        lines = [
            f"{len(self.flushes)} flushes of {self.ops} ops, {self.compilations} compilations",
            f"compiling {compiling:.3f} s, running {running:.3f} s",
        ]
        grouped = collections.Counter((f.reason, f.line) for f in self.flushes)
        for (reason, line), count in grouped.most_common():
            ops = sum(f.ops for f in self.flushes if (f.reason, f.line) == (reason, line))
            lines.append(f"  {count} × {reason} ({ops / count:.0f} ops each){f' at {line}' if line else ''}")
        return "\n".join(lines)


_lock = threading.Lock()
_open: list[FusionReport] = []
_short_reads: collections.Counter[str] = collections.Counter()
_reported: set[str] = set()


@contextmanager
def fusion_report() -> Iterator[FusionReport]:
    """Collect the flushes of the block: ``with torch.tpu.fusion_report() as report: …; print(report)``."""
    report = FusionReport()
    with _lock:
        _open.append(report)
    try:
        yield report
    finally:
        with _lock:
            _open.remove(report)


def flushed(
    reason: str, outcome: str, ops: int, results: int, compile_seconds: float, code: CodeType | None, line: int, seconds: float
) -> None:
    """Called by the dispatcher after each flush."""
    where = f"{code.co_filename}:{line}" if code is not None else ""
    if reason == STORM_REASON and ops < SHORT_TRACE and where:
        _short_reads[where] += 1
        if _short_reads[where] >= STORM_FLUSHES and where not in _reported:
            _reported.add(where)
            log.warning(
                "tpu: the host has read a value %d times at %s with fewer than %d ops recorded in between, so little is fused. "
                "Read values once a step, after the ops that make them, or keep the decision on the device (torch.where).",
                _short_reads[where],
                where,
                SHORT_TRACE,
            )
    if not _open:
        return
    flush = Flush(reason, outcome, ops, results, compile_seconds, seconds, where)
    with _lock:
        for report in _open:
            report.flushes.append(flush)
