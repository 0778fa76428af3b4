"""Whether the native extension fits the PyTorch that is running, found out before it is loaded: a mismatch crashes there."""

from __future__ import annotations

import torch


def check_torch() -> None:
    """ImportError, in one sentence, where ``torch_tpu._C`` was built against another minor version of PyTorch, or not at all."""
    try:
        from ._built_with import torch as built_against
    except ImportError:
        raise ImportError("torch_tpu has no native extension: build it with `pip install .` (or `make setup`)") from None
    running = str(torch.__version__)
    if _minor(built_against) != _minor(running):
        raise ImportError(
            f"torch_tpu was built for PyTorch {_minor(built_against)}.x and cannot run with PyTorch {running}: "
            f"install the torch_tpu built for {_minor(running)}, or torch=={_minor(built_against)}.*"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
