// Devices, streams, events, generators and hooks: what PyTorch's accelerator interfaces ask of a device.
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>

namespace torch_tpu {

constexpr int kMaxDevices = 64;

c10::DeviceIndex device_count();
void set_device_count(c10::DeviceIndex count);
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
// `device`, or the current one for -1; throws if there is no such device.
c10::DeviceIndex check_device_index(c10::DeviceIndex device);
bool is_initialized();
void set_initialized();
// Returns once the autograd engine's threads are done with every backward that has returned. They drop its state, with Python
// objects in it, a moment after the caller goes on; were that the end of the interpreter, asking for the GIL would kill them.
// Call without the GIL.
void drain_autograd();
// Whether this process was forked from one that had started PJRT; the check throws then.
bool in_forked_child();
void check_not_forked();
void register_hooks();

const at::Generator& default_generator(c10::DeviceIndex device);
// The seed and offset for one random op; advances the offset. `generator` may be undefined: the device's default.
std::pair<uint64_t, uint64_t> next_random(const at::Generator& generator, c10::DeviceIndex device);

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);
int64_t reserved_bytes(c10::DeviceIndex device);

}  // namespace torch_tpu
