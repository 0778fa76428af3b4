"""Runs every benchmark: ``python -m benchmarks``."""

from . import eager

if __name__ == "__main__":
    eager.main()
