"""``torch.compile(backend="tpu")`` and ``torch.tpu.compiler``: whole graphs as one executable, out of the table of lowerings.

backend.py joins Dynamo and AOTAutograd, graphs.py turns a graph of ATen ops into a function on arrays, compiled.py makes its
executables, and launch.py runs them on tensors. Nothing of it is imported before it is asked for: PyTorch finds the backend by
its entry point.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .explanation import Explanation, explain
    from .exporting import StableHLO, export_stablehlo
    from .settings import Options, options
    from .train import TrainStep, train_step

__all__ = ["Explanation", "Options", "StableHLO", "TrainStep", "explain", "export_stablehlo", "options", "train_step"]

_HOMES = {
    "Explanation": "explanation",
    "explain": "explanation",
    "StableHLO": "exporting",
    "export_stablehlo": "exporting",
    "Options": "settings",
    "options": "settings",
    "TrainStep": "train",
    "train_step": "train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
