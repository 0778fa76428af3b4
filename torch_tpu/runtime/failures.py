"""What to raise when the device fails: PyTorch's exception, and a text that says what was running."""

from __future__ import annotations

from .memory import out_of_memory

_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")


def explain(error: Exception, what: str, index: int) -> Exception:
    """The exception for ``error``, raised by PJRT while device ``index`` ran ``what``."""
    text = str(error)
    if any(sign in text for sign in _OUT_OF_MEMORY):
        return out_of_memory(what, text, index)
    return RuntimeError(f"tpu: {what} failed: {text}")
