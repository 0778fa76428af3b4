// The storage of a tpu tensor: a DataPtr whose context owns one immutable base buffer (a jax.Array).
//
// The buffer hangs on the StorageImpl, so it follows detach(), views, .data, set_() and resize_(); a tensor is only sizes,
// strides and an offset over it. Addresses are unique and never mapped: a stray host read traps instead of reading garbage.
#pragma once
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_tpu {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// The GIL guards every field but the links: storages die on any thread, and the list of the live ones has its own mutex.
struct StorageContext {
  PyObject* base = nullptr;  // jax.Array; null: never written, reads as zeros
  uint32_t aval = 0;         // interned dtype and shape of `base`; 0: none
  size_t nbytes = 0;
  c10::DeviceIndex device = 0;
  uint64_t address = 0;
  int32_t pending = -1;  // the value of the deferred trace that this storage will hold; -1: `base` is up to date
  struct Trace* trace = nullptr;
  bool lost = false;  // the deferred op that was to give the value failed
  StorageContext* previous = nullptr;
  StorageContext* next = nullptr;
};

inline bool has_value(const StorageContext* context) { return context->base != nullptr || context->pending >= 0; }

struct Aval {
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
};

// Interned base avals, so that a dispatch key holds one word for a base's dtype and shape. Id 0 means "no base".
uint32_t intern_aval(c10::ScalarType dtype, c10::IntArrayRef shape);
const Aval& aval_of(uint32_t id);

// Holds the GIL for a scope; safe from any thread, and cheap where it is held already.
struct Gil {
  PyGILState_STATE state;
  Gil();
  ~Gil() { PyGILState_Release(state); }
};
// False once the interpreter begins to end: from then on Python objects are left to the operating system.
bool python_is_alive();
// Called as the interpreter begins to end: waits for the threads that are about to take the GIL, since one that asks later is
// killed where it stands.
void begin_shutdown();

c10::DeviceAllocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);

// The context of a tpu storage. Throws for a storage that is not ours.
StorageContext* context_of(const c10::Storage& storage);
inline StorageContext* context_of(const at::Tensor& tensor) {
  return context_of(tensor.unsafeGetTensorImpl()->unsafe_storage());
}
// The live storage that holds `address`, or null.
StorageContext* find_context(uint64_t address);
// Replace the base buffer; takes over the reference. Needs the GIL.
void set_base(StorageContext* context, PyObject* base, uint32_t aval);
void resize_storage(const c10::Storage& storage, size_t nbytes);
// New tensor with a fresh storage on `device`.
at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, c10::DeviceIndex device);

struct LiveStorage {
  PyObject* base;  // a new reference, or null
  size_t nbytes;
  uint32_t aval;
  c10::DeviceIndex device;
};
std::vector<LiveStorage> live_storages();

struct MemoryCounters {
  int64_t bytes = 0, peak_bytes = 0, storages = 0, peak_storages = 0, total_bytes = 0, total_storages = 0;
};
MemoryCounters memory_counters(c10::DeviceIndex device);

}  // namespace torch_tpu
