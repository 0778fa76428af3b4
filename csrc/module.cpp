// The Python face of the device layer: torch_tpu._C.
#include <Python.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "callbacks.h"
#include "dispatch.h"
#include "runtime.h"
#include "storage.h"
#include "trace.h"

namespace {
using namespace torch_tpu;

const at::Tensor& tensor_of(PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a Tensor, got ", Py_TYPE(object)->tp_name);
  const auto& tensor = THPVariable_Unpack(object);
  TORCH_CHECK(tensor.device().type() == kDevice, "expected a tpu tensor, got one on ", tensor.device());
  return tensor;
}

std::vector<int64_t> ints_of(PyObject* sequence) {
  PyObject* fast = PySequence_Fast(sequence, "expected a sequence of ints");
  if (fast == nullptr) throw python_error();
  std::vector<int64_t> values;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast); i++) {
    values.push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, i)));
  }
  Py_DECREF(fast);
  if (PyErr_Occurred() != nullptr) throw python_error();
  return values;
}

PyObject* tuple_of(c10::IntArrayRef values) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(values.size()));
  for (size_t i = 0; i < values.size(); i++) PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(values[i]));
  return tuple;
}

c10::ScalarType dtype_of(PyObject* object) {
  TORCH_CHECK_TYPE(THPDtype_Check(object), "expected a torch.dtype");
  return reinterpret_cast<THPDtype*>(object)->scalar_type;
}

PyObject* py_setup(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  int count;
  PyObject* functions;
  if (!PyArg_ParseTuple(args, "iO!", &count, &PyDict_Type, &functions)) return nullptr;
  TORCH_CHECK_VALUE(count >= 0 && count <= kMaxDevices, "tpu: between 0 and ", kMaxDevices, " devices, not ", count);
  auto& c = callbacks();
  struct {
    const char* name;
    PyObject** place;
  } table[] = {{"describe", &c.describe}, {"miss", &c.miss}, {"prepare", &c.prepare}, {"fuse", &c.fuse}, {"pack", &c.pack}, {"flushed", &c.flushed}, {"plan_view", &c.plan_view}, {"make_scalar", &c.make_scalar},
               {"make_zeros", &c.make_zeros}, {"resize", &c.resize}, {"transfer", &c.transfer}, {"failed", &c.failed},
               {"before", &c.before}, {"after", &c.after}, {"synchronize", &c.synchronize}, {"record_event", &c.record_event},
               {"query_event", &c.query_event}, {"wait_event", &c.wait_event}, {"elapsed", &c.elapsed},
               {"memory_info", &c.memory_info}, {"initialize", &c.initialize}};
  for (auto& row : table) {
    PyObject* function = PyDict_GetItemString(functions, row.name);
    TORCH_CHECK_VALUE(function != nullptr, "tpu: no callback named ", row.name);
    Py_XSETREF(*row.place, Py_NewRef(function));
  }
  set_device_count(static_cast<c10::DeviceIndex>(count));
  register_hooks();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* py_set_device_count(PyObject*, PyObject* count) {
  HANDLE_TH_ERRORS
  set_device_count(static_cast<c10::DeviceIndex>(PyLong_AsLong(count)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}
PyObject* py_set_initialized(PyObject*, PyObject*) {
  set_initialized();
  Py_RETURN_NONE;
}
PyObject* py_is_initialized(PyObject*, PyObject*) { return PyBool_FromLong(is_initialized()); }
PyObject* py_current_device(PyObject*, PyObject*) { return PyLong_FromLong(current_device()); }
PyObject* py_set_device(PyObject*, PyObject* index) {
  HANDLE_TH_ERRORS
  auto device = PyLong_AsLong(index);
  if (device == -1 && PyErr_Occurred() != nullptr) throw python_error();
  auto previous = current_device();
  if (device >= 0) set_current_device(static_cast<c10::DeviceIndex>(device));
  return PyLong_FromLong(previous);
  END_HANDLE_TH_ERRORS
}

PyObject* py_base(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  auto* context = context_of(tensor_of(object));
  if (context->pending >= 0) flush("a value is read");
  TORCH_CHECK(!context->lost, "tpu: this tensor has no value, because the deferred op that was to compute it failed");
  if (context->base == nullptr) Py_RETURN_NONE;
  return Py_NewRef(context->base);
  END_HANDLE_TH_ERRORS
}

PyObject* py_set_base(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *object, *base, *dtype, *shape;
  if (!PyArg_ParseTuple(args, "OOOO", &object, &base, &dtype, &shape)) return nullptr;
  auto* context = context_of(tensor_of(object));
  if (base == Py_None) {
    set_base(context, nullptr, 0);
  } else {
    auto aval = intern_aval(dtype_of(dtype), ints_of(shape));
    set_base(context, Py_NewRef(base), aval);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Whether the tensor is its whole base, in order and with the base's dtype, or has a base that was never written.
PyObject* py_is_whole(PyObject*, PyObject* object) {
  HANDLE_TH_ERRORS
  const auto& tensor = tensor_of(object);
  auto* context = context_of(tensor);
  bool whole = tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.nbytes() == context->nbytes &&
               (!has_value(context) || aval_of(context->aval).dtype == tensor.scalar_type());
  return PyBool_FromLong(whole);
  END_HANDLE_TH_ERRORS
}

PyObject* py_new_tensor(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *sizes, *strides, *dtype;
  int device;
  if (!PyArg_ParseTuple(args, "OOOi", &sizes, &strides, &dtype, &device)) return nullptr;
  return THPVariable_Wrap(new_tensor(ints_of(sizes), ints_of(strides), dtype_of(dtype),
                                     check_device_index(static_cast<c10::DeviceIndex>(device))));
  END_HANDLE_TH_ERRORS
}

PyObject* py_live_storages(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  auto all = live_storages();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(all.size()));
  for (size_t i = 0; i < all.size(); i++) {
    const auto& storage = all[i];
    PyObject* shape = Py_NewRef(Py_None);
    PyObject* dtype = Py_NewRef(Py_None);
    if (storage.aval != 0) {
      Py_SETREF(shape, tuple_of(aval_of(storage.aval).shape));
      Py_SETREF(dtype, Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(aval_of(storage.aval).dtype))));
    }
    PyObject* base = storage.base == nullptr ? Py_NewRef(Py_None) : storage.base;
    PyList_SET_ITEM(list, i, Py_BuildValue("NnNNi", base, static_cast<Py_ssize_t>(storage.nbytes), shape, dtype,
                                           static_cast<int>(storage.device)));
  }
  return list;
  END_HANDLE_TH_ERRORS
}

PyObject* py_memory_counters(PyObject*, PyObject* index) {
  HANDLE_TH_ERRORS
  auto counters = memory_counters(check_device_index(static_cast<c10::DeviceIndex>(PyLong_AsLong(index))));
  return Py_BuildValue("{sLsLsLsLsLsL}", "bytes", (long long)counters.bytes, "peak_bytes", (long long)counters.peak_bytes,
                       "storages", (long long)counters.storages, "peak_storages", (long long)counters.peak_storages, "total_bytes",
                       (long long)counters.total_bytes, "total_storages", (long long)counters.total_storages);
  END_HANDLE_TH_ERRORS
}

PyObject* py_default_generator(PyObject*, PyObject* index) {
  HANDLE_TH_ERRORS
  return THPGenerator_Wrap(default_generator(static_cast<c10::DeviceIndex>(PyLong_AsLong(index))));
  END_HANDLE_TH_ERRORS
}

PyObject* py_next_random(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* generator;
  int device;
  if (!PyArg_ParseTuple(args, "Oi", &generator, &device)) return nullptr;
  at::Generator given = generator == Py_None ? at::Generator() : reinterpret_cast<THPGenerator*>(generator)->cdata;
  auto [seed, offset] = next_random(given, static_cast<c10::DeviceIndex>(device));
  return Py_BuildValue("LL", static_cast<long long>(seed), static_cast<long long>(offset));
  END_HANDLE_TH_ERRORS
}

// The torch.dtype of a ScalarType argument, which reaches Python as its number.
PyObject* py_dtype(PyObject*, PyObject* index) {
  HANDLE_TH_ERRORS
  return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<c10::ScalarType>(PyLong_AsLong(index)))));
  END_HANDLE_TH_ERRORS
}

PyObject* py_register_overload(PyObject*, PyObject* name) {
  HANDLE_TH_ERRORS
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return nullptr;
  register_overload(text);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* py_set_mode(PyObject*, PyObject* mode) {
  HANDLE_TH_ERRORS
  set_mode(static_cast<Mode>(PyLong_AsLong(mode)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}
PyObject* py_effective_mode(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  return PyLong_FromLong(static_cast<long>(effective_mode()));
  END_HANDLE_TH_ERRORS
}
PyObject* py_begin_shutdown(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  begin_shutdown();
  {
    pybind11::gil_scoped_release released;
    drain_autograd();
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}
PyObject* py_push_mode(PyObject*, PyObject* mode) {
  HANDLE_TH_ERRORS
  push_mode(static_cast<Mode>(PyLong_AsLong(mode)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}
PyObject* py_pop_mode(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  pop_mode();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}
PyObject* py_clear_entries(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  clear_entries();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}
PyObject* py_flush(PyObject*, PyObject* reason) {
  HANDLE_TH_ERRORS
  const char* text = PyUnicode_AsUTF8(reason);
  if (text == nullptr) return nullptr;
  flush(text);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}
PyObject* py_end_step(PyObject*, PyObject*) {
  end_step();
  Py_RETURN_NONE;
}
PyObject* py_set_trace_limits(PyObject*, PyObject* args) {
  long long nodes, bytes;
  if (!PyArg_ParseTuple(args, "LL", &nodes, &bytes)) return nullptr;
  set_trace_limits(nodes, bytes);
  Py_RETURN_NONE;
}

PyObject* py_dispatch_counters(PyObject*, PyObject*) {
  auto counters = dispatch_counters();
  return Py_BuildValue("{sKsKsK}", "hits", (unsigned long long)counters.hits, "misses", (unsigned long long)counters.misses,
                       "launches", (unsigned long long)counters.launches);
}

PyMethodDef kMethods[] = {
    {"setup", py_setup, METH_VARARGS, "setup(device_count, callbacks)"},
    {"set_device_count", py_set_device_count, METH_O, nullptr},
    {"set_initialized", py_set_initialized, METH_NOARGS, nullptr},
    {"is_initialized", py_is_initialized, METH_NOARGS, nullptr},
    {"current_device", py_current_device, METH_NOARGS, nullptr},
    {"set_device", py_set_device, METH_O, "set_device(index) -> previous index; negative: only ask"},
    {"base", py_base, METH_O, "base(tensor) -> jax.Array or None"},
    {"set_base", py_set_base, METH_VARARGS, "set_base(tensor, array or None, torch dtype, shape)"},
    {"is_whole", py_is_whole, METH_O, nullptr},
    {"new_tensor", py_new_tensor, METH_VARARGS, "new_tensor(sizes, strides, dtype, device) -> Tensor"},
    {"live_storages", py_live_storages, METH_NOARGS, "-> [(base or None, nbytes, shape or None, dtype or None, device)]"},
    {"memory_counters", py_memory_counters, METH_O, nullptr},
    {"default_generator", py_default_generator, METH_O, nullptr},
    {"next_random", py_next_random, METH_VARARGS, "next_random(generator or None, device) -> (seed, offset)"},
    {"dtype", py_dtype, METH_O, "dtype(ScalarType number) -> torch.dtype"},
    {"register_overload", py_register_overload, METH_O, nullptr},
    {"set_mode", py_set_mode, METH_O, nullptr},
    {"effective_mode", py_effective_mode, METH_NOARGS, nullptr},
    {"begin_shutdown", py_begin_shutdown, METH_NOARGS, "for atexit"},
    {"push_mode", py_push_mode, METH_O, nullptr},
    {"pop_mode", py_pop_mode, METH_NOARGS, nullptr},
    {"clear_entries", py_clear_entries, METH_NOARGS, nullptr},
    {"flush", py_flush, METH_O, "flush(reason): run what is deferred"},
    {"end_step", py_end_step, METH_NOARGS, "a training step is complete: the next op starts a new trace"},
    {"set_trace_limits", py_set_trace_limits, METH_VARARGS, "set_trace_limits(nodes, bytes): flush a trace that reaches either"},
    {"dispatch_counters", py_dispatch_counters, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "torch_tpu._C", "The tpu device layer.", -1, kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&kModule); }
