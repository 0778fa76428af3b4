"""Runs every benchmark: ``python -m benchmarks [--check]``."""

from . import deferred, eager

if __name__ == "__main__":
    for benchmark in (eager, deferred):
        benchmark.main()
