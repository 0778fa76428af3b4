"""Runs every benchmark: ``python -m benchmarks [--check]``."""

from . import compiled, deferred, eager

if __name__ == "__main__":
    for benchmark in (eager, deferred, compiled):
        benchmark.main()
