"""Eager modes, under the name by which other projects import them; assign ``torch.tpu.eager_mode`` to change the process's."""

from ..eager.modes import EagerMode, set_eager_mode

__all__ = ["EagerMode", "set_eager_mode"]
