"""What the hardware is, under the names by which other projects import it."""

from ...device.devices import get_device_name as get_tpu_device_name

__all__ = ["get_tpu_device_name"]
