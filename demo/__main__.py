"""Runs both demos: ``python -m demo [--device tpu]``."""

import time

from . import gpt, minilm
from .report import executables, parse_device


def main() -> None:
    device = parse_device(__doc__)
    start = time.perf_counter()
    minilm.run(device)
    print()
    gpt.run(device)
    print(f"\nBoth demos took {time.perf_counter() - start:.0f} s.")
    executables(device)


if __name__ == "__main__":
    main()
