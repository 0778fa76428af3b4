// The Python functions that the device layer calls back; set once by torch_tpu.device when the device is registered.
#pragma once
#include <Python.h>

#include <torch/csrc/Exceptions.h>

namespace torch_tpu {

struct Callbacks {
  PyObject* describe = nullptr;      // (name, overload) -> argument roles of an overload
  PyObject* miss = nullptr;          // a new signature -> its entry: (record, outputs, returns, random)
  PyObject* prepare = nullptr;       // (entry's record) -> (execute, handlers)
  PyObject* fuse = nullptr;          // a deferred trace -> (record, execute, handlers)
  PyObject* pack = nullptr;          // (bytes, dtype, device) -> 1-d jax.Array
  PyObject* flushed = nullptr;       // told of every flush of a deferred trace
  PyObject* plan_view = nullptr;     // a view's geometry over a base -> its plan
  PyObject* make_scalar = nullptr;   // (tag, value, device) -> 0-d jax.Array
  PyObject* make_zeros = nullptr;    // (aval, device) -> jax.Array of zeros
  PyObject* resize = nullptr;        // (base, nbytes) -> 1-d jax.Array of that many bytes
  PyObject* transfer = nullptr;      // (source, destination, non_blocking) -> None
  PyObject* failed = nullptr;        // (record, exception) -> raises what the user should see
  PyObject* before = nullptr;        // debug mode: (op, args) before a launch
  PyObject* after = nullptr;         // debug mode: (op, results) after a launch
  PyObject* synchronize = nullptr;   // (device) -> None
  PyObject* record_event = nullptr;  // (device, timing) -> event state
  PyObject* query_event = nullptr;   // (state) -> bool
  PyObject* wait_event = nullptr;    // (state) -> None
  PyObject* elapsed = nullptr;       // (state, state) -> milliseconds
  PyObject* memory_info = nullptr;   // (device) -> (free, total, reserved) bytes
  PyObject* initialize = nullptr;    // () -> None: start PJRT, or raise
};
Callbacks& callbacks();

// Calls `function` and turns a Python exception into a C++ one. Needs the GIL. Returns a new reference.
template <typename... Args>
PyObject* call(PyObject* function, const char* format, Args... args) {
  TORCH_CHECK(function != nullptr, "tpu: the device is not registered; import torch_tpu before using it");
  PyObject* result = PyObject_CallFunction(function, format, args...);
  if (result == nullptr) throw python_error();
  return result;
}

}  // namespace torch_tpu
