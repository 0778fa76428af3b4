"""What a user may choose about a compilation, checked as soon as it is said."""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Options:
    """The options of ``torch.compile(backend="tpu", options={...})``.

    donate: whether inputs that a graph writes (caches, running statistics, optimizer state) give their buffers to the results.
    max_executables: how many executables one graph with dynamic sizes keeps; the least recently used one goes first.
    xla: options of the XLA compiler, by name. In ``options={...}`` each is given by itself, as a key that starts with ``xla_``.
    """

    donate: bool = True
    max_executables: int = 64
    xla: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """These options with ``changes`` made; ValueError for an unknown name, TypeError for a value of the wrong type."""
        known = {each.name: each for each in dataclasses.fields(self) if each.name != "xla"}
        chosen: dict[str, Any] = {}
        xla = dict(self.xla)
        for name, value in changes.items():
            if name.startswith("xla_"):
                xla[name] = value
            elif name not in known:
                names = ", ".join([*known, "and XLA's own, which start with xla_"])
                raise ValueError(f'torch.compile(backend="tpu"): there is no option {name!r}; the options are {names}')
            else:
                wanted = type(known[name].default)
                if type(value) is not wanted:
                    raise TypeError(f'torch.compile(backend="tpu"): option {name!r} takes a {wanted.__name__}, got {value!r}')
                chosen[name] = value
        if chosen.get("max_executables", 1) < 1:
            raise ValueError("torch.compile(backend=\"tpu\"): option 'max_executables' is at least 1")
        return dataclasses.replace(self, **chosen, xla=xla)


_defaults: contextvars.ContextVar[Options | None] = contextvars.ContextVar("torch_tpu compiler options", default=None)


def current_options() -> Options:
    """The options of a graph that asks for none."""
    return _defaults.get() or Options()


@contextmanager
def options(**changes: Any) -> Iterator[Options]:
    """Change the options of graphs that are compiled inside the block (at their first call), on this thread.

    What ``torch.compile(options={...})`` says goes before.
    """
    chosen = current_options().changed(changes)
    token = _defaults.set(chosen)
    try:
        yield chosen
    finally:
        _defaults.reset(token)


def check_mode(mode: str | None) -> None:
    """ValueError for a mode that PyTorch does not have.

    All modes compile alike: there are no launches to hide in a recorded stream (an executable is one launch), and XLA picks
    its kernels by its own cost model.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f'torch.compile(backend="tpu"): there is no mode {mode!r}; the modes are {", ".join(MODES)}')
