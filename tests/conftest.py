"""Every test runs with the tpu device registered, on the CPU emulation, and with a compilation cache of its own run."""

from __future__ import annotations

import os

os.environ.setdefault("TORCH_TPU_PLATFORM", "cpu")
os.environ.setdefault("TORCH_TPU_COMPILE_EFFORT", "low")

import torch  # noqa: E402

if not hasattr(torch, "tpu"):  # autoload was switched off, or the package is used from its source tree
    import torch_tpu

    torch_tpu._autoload()
