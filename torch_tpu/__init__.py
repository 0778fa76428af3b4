"""PyTorch's native backend for TPUs, in Python, over XLA.

``import torch`` is enough: PyTorch loads installed device backends itself, which names the device and adds ``torch.tpu``. JAX and
the TPU runtime start with the first tensor. ``import torch_tpu`` does the same where that loading is switched off
(``TORCH_DEVICE_BACKEND_AUTOLOAD=0``), and raises what kept the device from being registered.
"""

from __future__ import annotations

import sys

__version__ = "0.3.0"


def _autoload() -> None:
    """What PyTorch calls at the end of ``import torch``: must not raise, or no program could import PyTorch."""
    try:
        _register()
    except Exception as error:  # whatever it is, a program that never asks for a tpu goes on without one
        if getattr(__spec__, "_initializing", False):
            return  # torch is imported by `import torch_tpu`, which raises this itself
        import warnings

        sys.modules.pop(__name__, None)  # so that an explicit import runs this file again, and raises
        warnings.warn(f"torch_tpu: there is no tpu device in this process: {error}", RuntimeWarning, stacklevel=2)


def _register() -> None:
    from ._versions import check_torch

    check_torch()
    from .device.registration import register

    register()


import torch  # noqa: E402  (PyTorch may call _autoload while this line runs)

if not getattr(torch.__spec__, "_initializing", False):
    _register()
