// Every compute op of the tpu device runs through dispatch(): build the key of the call, look up its entry, launch it.
//
// A key holds what shapes a program: the op, each tensor's geometry, dtype and base, the static arguments. It never holds a
// storage offset, an address or the value of a Scalar: those are arguments of the executable. Python is asked only for a key
// not seen before. The GIL is the lock of all state in this file, and no other lock is held while Python runs.
#include "dispatch.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <unordered_map>

#include "callbacks.h"
#include "program.h"
#include "runtime.h"
#include "storage.h"
#include "trace.h"

namespace torch_tpu {
namespace {

using c10::IValue;
using torch::jit::Stack;

// ---- operators: what Python says of an overload, once

enum Role : uint8_t { kStatic = 0, kScalar = 1, kDropped = 2, kGenerator = 3, kWritten = 4 };
enum Flag : int { kPythonKernel = 1, kCopy = 2, kIndexes = 4, kFitting = 8 };

struct Operator {
  std::string name, overload;
  std::vector<uint8_t> roles;
  int flags = 0;
  py::object kernel;  // kPythonKernel: the function to call with the arguments
  ska::flat_hash_map<Key, std::unique_ptr<Entry>, KeyHash> entries;
};

std::unordered_map<const c10::FunctionSchema*, Operator*>& operators() {
  static auto* table = new std::unordered_map<const c10::FunctionSchema*, Operator*>;
  return *table;
}

DispatchCounters g_counters;
std::atomic<int> g_mode{0};

Operator* find_operator(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  auto found = operators().find(&schema);
  if (found != operators().end()) return found->second;
  auto op = std::make_unique<Operator>();
  op->name = schema.name();
  op->overload = schema.overload_name().empty() ? "default" : schema.overload_name();
  // (roles, flags, kernel)
  auto described = py::reinterpret_steal<py::tuple>(call(callbacks().describe, "ss", op->name.c_str(), op->overload.c_str()));
  auto roles = described[0].cast<std::string>();
  op->roles.assign(roles.begin(), roles.end());
  op->flags = described[1].cast<int>();
  op->kernel = described[2];
  auto& place = operators()[&schema];
  if (place == nullptr) place = op.release();  // another thread may have been here while Python ran
  return place;
}

// ---- views: geometry over a base → a plan, found without its offset

struct Plan {
  py::object object;             // the Python plan
  uint64_t id;
  std::vector<int64_t> dims, strides, extents;  // the base as the plan sees it, and how much of each axis it reads
  // The start on each axis for `offset`, or false where this plan does not reach.
  bool starts(int64_t offset, c10::SmallVectorImpl<int64_t>& out) const {
    out.clear();
    for (size_t i = 0; i < dims.size(); i++) {
      int64_t start = strides[i] > 0 ? offset / strides[i] : 0;
      if (i > 0 && dims[i] > 0) start %= dims[i];
      if (start + extents[i] > dims[i]) return false;
      out.push_back(start);
    }
    return true;
  }
};
struct PlanList {
  std::vector<std::unique_ptr<Plan>> plans;
};
ska::flat_hash_map<Key, std::unique_ptr<PlanList>, KeyHash>& plan_cache() {
  static auto* cache = new ska::flat_hash_map<Key, std::unique_ptr<PlanList>, KeyHash>;
  return *cache;
}

const Plan* find_plan(uint32_t aval, const c10::TensorImpl* tensor, c10::SmallVectorImpl<int64_t>& starts) {
  Key key;
  key.add(aval);
  auto dtype = tensor->dtype().toScalarType();
  key.add(uint64_t(dtype));
  for (auto size : tensor->sizes()) key.add(size);
  for (auto stride : tensor->strides()) key.add(stride);
  key.seal();
  auto offset = tensor->storage_offset();
  auto& cache = plan_cache();
  auto found = cache.find(key);
  if (found != cache.end()) {
    for (const auto& plan : found->second->plans) {
      if (plan->starts(offset, starts)) return plan.get();
    }
  }
  static uint64_t next_id = 1;
  const auto& base = aval_of(aval);
  // (plan, dims, extents)
  auto answer = py::reinterpret_steal<py::tuple>(call(
      callbacks().plan_view, "NNNNNL", py::cast(base.shape).release().ptr(), dtype_object(base.dtype),
      dtype_object(dtype), py::cast(tensor->sizes().vec()).release().ptr(),
      py::cast(tensor->strides().vec()).release().ptr(), static_cast<long long>(offset)));
  auto plan = std::make_unique<Plan>();
  plan->object = answer[0];
  plan->id = next_id++;
  plan->dims = answer[1].cast<std::vector<int64_t>>();
  plan->extents = answer[2].cast<std::vector<int64_t>>();
  plan->strides.assign(plan->dims.size(), 1);
  for (int i = static_cast<int>(plan->dims.size()) - 2; i >= 0; i--) plan->strides[i] = plan->strides[i + 1] * plan->dims[i + 1];
  TORCH_INTERNAL_ASSERT(plan->starts(offset, starts), "tpu: the view planner returned a plan that does not reach the view");
  auto& list = cache[key];
  if (list == nullptr) list = std::make_unique<PlanList>();
  // A pathological program may make plans without end; old ones are only a cache, but entries refer to them: keep, and cap reuse.
  list->plans.push_back(std::move(plan));
  return list->plans.back().get();
}

// ---- scalars: run-time values as 0-d arrays, remembered by value

ScalarValue scalar_value(const at::Scalar& scalar) {
  if (scalar.isBoolean()) return {'b', uint64_t(scalar.toBool())};
  if (scalar.isIntegral(false)) {
    return scalar.type() == c10::ScalarType::UInt64 ? ScalarValue{'i', scalar.toUInt64()} : ScalarValue{'i', uint64_t(scalar.toLong())};
  }
  if (scalar.isComplex()) {
    auto z = scalar.toComplexDouble();
    return {'c', bits_of(z.real()), bits_of(z.imag())};
  }
  return {'d', bits_of(scalar.toDouble())};
}

// ---- one call

struct Slot {
  StorageContext* context;
  bool passed;  // has a base, so is an argument of the executable
};
struct TensorUse {
  int slot;          // -1: no elements, or a host scalar
  const Plan* plan;  // null: the whole base
};

struct Call {
  Key key;
  c10::SmallVector<Slot, 8> slots;
  c10::SmallVector<TensorUse, 8> uses;
  c10::SmallVector<at::Tensor, 8> tensors;  // in order of `uses`
  c10::SmallVector<ScalarValue, 8> scalars;
  at::Generator generator;
  int device = -1;
  const Operator* op = nullptr;
  bool deferred = false;  // recorded, not launched: nothing is donated yet

  ska::flat_hash_map<StorageContext*, int> slot_by_context;  // once there are many

  // Building a key may let other threads run, so where a storage stands is kept here and not in the storage.
  int slot_of(StorageContext* context) {
    constexpr size_t kMany = 16;
    int slot = -1;
    if (slots.size() <= kMany) {
      for (size_t i = 0; i < slots.size() && slot < 0; i++) slot = slots[i].context == context ? static_cast<int>(i) : -1;
    } else {
      if (slot_by_context.empty()) {
        for (size_t i = 0; i < slots.size(); i++) slot_by_context[slots[i].context] = static_cast<int>(i);
      }
      auto found = slot_by_context.find(context);
      if (found != slot_by_context.end()) slot = found->second;
    }
    if (slot < 0) {
      slot = static_cast<int>(slots.size());
      slots.push_back({context, has_value(context)});
      if (slots.size() > kMany && !slot_by_context.empty()) slot_by_context[context] = slot;
    }
    slots[slot].passed = has_value(context);
    return slot;
  }
  void tensor(const at::Tensor& given, bool written);
  void value(const IValue& value, uint8_t role, const c10::Argument& argument);
  void scalar(const at::Scalar& scalar) {
    auto v = scalar_value(scalar);
    key.add(0x20 | (v.tag << 8));
    scalars.push_back(v);
  }
};

[[noreturn]] void raise_device_mismatch(const at::Tensor& other, int device) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(kDevice, static_cast<c10::DeviceIndex>(std::max(device, 0))), " and ", other.device(), "!");
}

void Call::tensor(const at::Tensor& given, bool written) {
  if (!given.defined()) {
    key.add(0x10);
    return;
  }
  auto* impl = given.unsafeGetTensorImpl();
  auto keys = impl->key_set();
  if (impl->device_type() != kDevice) {
    // As for every accelerator, a 0-d CPU tensor may take part: its value becomes an argument.
    if (impl->device_type() == c10::DeviceType::CPU && impl->dim() == 0 && !written && given.layout() == c10::kStrided) {
      auto v = scalar_value(at::_local_scalar_dense(given));
      if (!impl->is_wrapped_number()) {
        auto dtype = impl->dtype().toScalarType();
        v.tag = kStrong + uint64_t(dtype);
      }
      key.add(0x30 | (v.tag << 8));
      scalars.push_back(v);
      uses.push_back({-1, nullptr});
      tensors.push_back(given);
      return;
    }
    raise_device_mismatch(given, device);
  }
  if (device != impl->device().index()) {
    if (device >= 0) raise_device_mismatch(given, device);
    device = impl->device().index();
  }
  TORCH_CHECK_NOT_IMPLEMENTED(given.layout() == c10::kStrided, op->name, ": not implemented for tpu tensors with layout ", given.layout());
  auto dtype = impl->dtype().toScalarType();
  uint64_t head = 0x40 | (uint64_t(dtype) << 8) | (uint64_t(impl->dim()) << 16) |
                  (uint64_t(keys.has(c10::DispatchKey::Conjugate)) << 24) | (uint64_t(keys.has(c10::DispatchKey::Negative)) << 25) |
                  (uint64_t(impl->is_wrapped_number()) << 26);
  bool contiguous = impl->is_contiguous();
  auto numel = impl->numel();
  if (numel == 0) {
    key.add(head | (uint64_t(1) << 32));
    for (auto size : impl->sizes()) key.add(size);
    for (auto stride : impl->strides()) key.add(stride);
    uses.push_back({-1, nullptr});
    tensors.push_back(given);
    return;
  }
  auto* context = context_of(impl->unsafe_storage());
  if (context->pending >= 0 && !deferred) flush("an op in another mode reads the value");
  TORCH_CHECK(!context->lost || written, "tpu: ", op->name, "(): this tensor has no value, because the deferred op that was to "
              "compute it failed; see the error raised when it ran");
  if (!has_value(context) && context->nbytes > 0) {
    bool whole = contiguous && impl->storage_offset() == 0 && size_t(numel) * impl->itemsize() == context->nbytes;
    if (!whole) {
      // Never written, and not seen whole: give it zeros, in the natural shape of what is at hand.
      std::vector<int64_t> shape;
      if (impl->is_non_overlapping_and_dense() && impl->storage_offset() == 0 && size_t(numel) * impl->itemsize() == context->nbytes) {
        c10::SmallVector<int64_t, 6> order(impl->dim());
        for (int64_t i = 0; i < impl->dim(); i++) order[i] = i;
        auto strides = impl->strides();
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
        for (auto i : order) shape.push_back(impl->size(i));
      } else {
        shape.push_back(static_cast<int64_t>(context->nbytes / impl->itemsize()));
      }
      auto aval = intern_aval(dtype, shape);
      set_base(context, call(callbacks().make_zeros, "NNi", py::cast(shape).release().ptr(),
                             dtype_object(dtype), static_cast<int>(context->device)), aval);
    }
  }
  TORCH_CHECK(context->nbytes > 0, "tpu: ", op->name, "(): the storage of a tensor of shape ", impl->sizes(),
              " has been freed (its size is 0)");
  TensorUse use{slot_of(context), nullptr};
  const bool base_is_whole = contiguous && impl->storage_offset() == 0 && size_t(numel) * impl->itemsize() == context->nbytes;
  if (base_is_whole && (!has_value(context) || aval_of(context->aval).dtype == dtype)) {
    key.add(head | (uint64_t(2) << 32) | (uint64_t(use.slot) << 40));
    key.add(context->aval);
    for (auto size : impl->sizes()) key.add(size);
  } else {
    c10::SmallVector<int64_t, 8> starts;
    use.plan = find_plan(context->aval, impl, starts);
    key.add(head | (uint64_t(3) << 32) | (uint64_t(use.slot) << 40));
    key.add(use.plan->id);
    for (auto stride : impl->strides()) key.add(stride);
    for (size_t i = 0; i < starts.size(); i++) {
      if (use.plan->extents[i] < use.plan->dims[i]) scalars.push_back({kInt64Tag, uint64_t(starts[i])});
    }
  }
  // A base that nobody else holds may be updated in place.
  if (written && has_value(context)) key.add(0x50 | (uint64_t(!deferred && Py_REFCNT(context->base) == 1) << 8));
  uses.push_back(use);
  tensors.push_back(given);
}

bool equals_default(const IValue& value, const c10::Argument& argument) {
  if (!argument.default_value().has_value()) return false;
  const auto& preset = *argument.default_value();
  if (!preset.isScalar() || !value.isScalar()) return false;
  auto a = scalar_value(value.toScalar()), b = scalar_value(preset.toScalar());
  return a.tag == b.tag && a.first == b.first && a.second == b.second;
}

void Call::value(const IValue& v, uint8_t role, const c10::Argument& argument) {
  if (role == kDropped) {
    return;
  }
  if (v.isTensor()) {
    tensor(v.toTensor(), role == kWritten);
  } else if (v.isNone()) {
    key.add(0x01);
  } else if (role == kGenerator) {
    generator = v.toGenerator();
  } else if (v.isTensorList()) {
    auto list = v.toListRef();
    key.add(0x02 | (uint64_t(list.size()) << 8));
    for (const auto& element : list) tensor(element.toTensor(), role == kWritten);
  } else if (v.isScalar() && role == kScalar && !equals_default(v, argument)) {
    scalar(v.toScalar());
  } else if (v.isInt()) {
    key.add(0x03);
    key.add(uint64_t(v.toInt()));
  } else if (v.isBool()) {
    key.add(0x04 | (uint64_t(v.toBool()) << 8));
  } else if (v.isDouble()) {
    key.add(0x05);
    key.add(bits_of(v.toDouble()));
  } else if (v.isComplexDouble()) {
    auto z = v.toComplexDouble();
    key.add(0x06);
    key.add(bits_of(z.real()));
    key.add(bits_of(z.imag()));
  } else if (v.isSymInt() || v.isSymFloat() || v.isSymBool()) {
    TORCH_CHECK(false, "tpu: ", op->name, " needs concrete sizes, got a symbolic ", argument.name());
  } else if (v.isIntList()) {
    auto list = v.toIntList();
    key.add(0x07 | (uint64_t(list.size()) << 8));
    for (int64_t element : list) key.add(uint64_t(element));
  } else if (v.isString()) {
    const auto& text = v.toStringRef();
    key.add(0x08 | (uint64_t(text.size()) << 8));
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      key.add(word);
    }
  } else if (v.isDevice()) {
    key.add(0x09 | (uint64_t(v.toDevice().type()) << 8) | (uint64_t(uint8_t(v.toDevice().index())) << 16));
  } else if (v.isList()) {
    auto list = v.toListRef();
    key.add(0x0A | (uint64_t(list.size()) << 8));
    for (const auto& element : list) value(element, role, argument);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu: ", op->name, ": an argument of kind ", v.tagKind(), " is not supported");
  }
}

PyObject* python_arguments(const Stack& stack, size_t first, size_t count) {
  PyObject* args = PyTuple_New(static_cast<Py_ssize_t>(count));
  for (size_t i = 0; i < count; i++) {
    IValue v = stack[first + i];
    if (v.isTensor() && v.toTensor().defined() && v.toTensor().unsafeGetTensorImpl()->is_wrapped_number() && v.toTensor().is_cpu()) {
      v = IValue(v.toTensor().item());  // a Python number that PyTorch wrapped: give it back as one
    }
    PyTuple_SET_ITEM(args, i, torch::jit::toPyObject(std::move(v)).release().ptr());
  }
  return args;
}

void push_results(const c10::FunctionSchema& schema, Stack* stack, size_t count, py::object result) {
  torch::jit::drop(*stack, count);
  const auto& returns = schema.returns();
  if (returns.empty()) return;
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  auto results = py::reinterpret_borrow<py::sequence>(result);
  TORCH_CHECK(results.size() == returns.size(), "tpu: ", schema.name(), " gave ", results.size(), " results, not ", returns.size());
  for (size_t i = 0; i < returns.size(); i++) stack->push_back(torch::jit::toIValue(results[i], returns[i].type()));
}

std::unique_ptr<Entry> parse_entry(const py::tuple& t) {
  auto entry = std::make_unique<Entry>();
  entry->record = t[0];
  for (auto item : t[1]) {
    auto o = py::reinterpret_borrow<py::tuple>(item);
    Output output;
    output.kind = static_cast<Output::Kind>(o[0].cast<int>());
    output.slot = o[1].cast<int>();
    output.sizes = o[2].cast<std::vector<int64_t>>();
    output.strides = o[3].cast<std::vector<int64_t>>();
    output.dtype = reinterpret_cast<THPDtype*>(o[4].ptr())->scalar_type;
    if (output.kind != Output::kFreshEmpty) {
      auto shape = o[5].cast<std::vector<int64_t>>();
      output.aval = intern_aval(reinterpret_cast<THPDtype*>(o[6].ptr())->scalar_type, shape);
    }
    entry->outputs.push_back(std::move(output));
  }
  for (auto item : t[2]) {
    auto r = py::reinterpret_borrow<py::tuple>(item);
    entry->returns.push_back({static_cast<Return::Kind>(r[0].cast<int>()), r[1].cast<std::vector<int>>()});
  }
  entry->random = t[3].cast<bool>();
  entry->empty = std::all_of(entry->outputs.begin(), entry->outputs.end(), [](const Output& o) { return o.kind == Output::kFreshEmpty; });
  return entry;
}

// Asks Python for the entry of a new signature. Null with `kernel` set: that function is to be called instead (CPU fallback).
// Null without: the outputs were resized first, so the key must be built again.
Entry* miss(Operator* op, Call& c, PyObject* args, py::object& kernel) {
  g_counters.misses++;
  py::list uses;
  for (const auto& use : c.uses) {
    uses.append(py::make_tuple(use.slot, use.plan == nullptr ? py::none() : use.plan->object));
  }
  py::list slots;
  for (const auto& slot : c.slots) {
    if (!slot.passed) {
      slots.append(py::none());
      continue;
    }
    const auto& aval = aval_of(slot.context->aval);
    slots.append(py::make_tuple(aval.shape, py::reinterpret_steal<py::object>(dtype_object(aval.dtype)),
                                !c.deferred && Py_REFCNT(slot.context->base) == 1));
  }
  auto answer = py::reinterpret_steal<py::object>(call(callbacks().miss, "ssOOOi", op->name.c_str(), op->overload.c_str(), args,
                                                       uses.ptr(), slots.ptr(), c.device));
  if (answer.is_none()) return nullptr;
  if (PyCallable_Check(answer.ptr()) != 0) {
    kernel = answer;
    return nullptr;
  }
  auto entry = parse_entry(py::reinterpret_borrow<py::tuple>(answer));
  auto& place = op->entries[c.key];
  if (place == nullptr) place = std::move(entry);  // another thread may have been here while Python ran
  return place.get();
}

// The numbers that the launch passes, the generator's included.
void add_random(const Entry& entry, Call& c) {
  if (!entry.random) return;
  auto [seed, offset] = next_random(c.generator, static_cast<c10::DeviceIndex>(c.device));
  c.scalars.push_back({kInt64Tag, seed});
  c.scalars.push_back({kInt64Tag, offset, 0, /*remember=*/false});
}

// Runs the entry and returns the list of new arrays.
PyObject* launch(Entry& entry, Call& c) {
  g_counters.launches++;
  if (!entry.execute) prepare(entry);
  size_t count = c.scalars.size();
  for (const auto& slot : c.slots) count += slot.passed;
  auto arguments = py::reinterpret_steal<py::object>(PyList_New(static_cast<Py_ssize_t>(count)));
  Py_ssize_t next = 0;
  for (const auto& slot : c.slots) {
    if (slot.passed) PyList_SET_ITEM(arguments.ptr(), next++, Py_NewRef(slot.context->base));
  }
  for (const auto& scalar : c.scalars) {
    PyList_SET_ITEM(arguments.ptr(), next++, scalar_array(scalar, static_cast<c10::DeviceIndex>(c.device)).release().ptr());
  }
  return execute(entry, arguments.ptr());
}

// Makes the op's results: from the arrays of a launch, or (null) as values of the trace that will compute them.
void finish(Entry& entry, Call& c, PyObject* results, const c10::FunctionSchema& schema, Stack* stack, size_t count) {
  c10::SmallVector<at::Tensor, 4> fresh;
  c10::SmallVector<StorageContext*, 4> owners;
  Py_ssize_t next = 0;
  for (const auto& output : entry.outputs) {
    StorageContext* context = nullptr;
    if (output.kind != Output::kWrite) {
      fresh.push_back(new_tensor(output.sizes, output.strides, output.dtype, static_cast<c10::DeviceIndex>(c.device)));
      if (output.kind == Output::kFreshEmpty) continue;
      context = context_of(fresh.back());
    } else {
      context = c.slots[output.slot].context;
    }
    if (results != nullptr) {
      set_base(context, Py_NewRef(PyList_GET_ITEM(results, next++)), output.aval);
    } else {
      owners.push_back(context);
    }
  }
  if (results == nullptr && !entry.empty) {
    c10::SmallVector<StorageContext*, 8> inputs;
    for (const auto& slot : c.slots) {
      if (slot.passed) inputs.push_back(slot.context);
    }
    record(entry, inputs, owners, c.scalars, static_cast<c10::DeviceIndex>(c.device));
  }
  c10::SmallVector<IValue, 4> values;
  for (const auto& r : entry.returns) {
    switch (r.kind) {
      case Return::kOutput:
        values.emplace_back(fresh[r.indices[0]]);
        break;
      case Return::kArgument:
        values.push_back((*stack)[stack->size() - count + r.indices[0]]);
        break;
      case Return::kList: {
        c10::List<at::Tensor> list;
        for (auto i : r.indices) list.push_back(fresh[i]);
        values.emplace_back(std::move(list));
        break;
      }
      case Return::kUndefined:
        values.emplace_back(at::Tensor());
        break;
    }
  }
  torch::jit::drop(*stack, count);
  for (auto& v : values) stack->push_back(std::move(v));
}

bool is_transfer(const Stack& stack, size_t first) {
  const auto& source = stack[first].toTensor();
  const auto& destination = stack[first + 1].toTensor();
  return source.device() != destination.device();
}

// index and index_put: index tensors on the host are moved to the device, and masks become the indices of their true elements
// (one host read a mask), as on every accelerator.
void expand_indices(Stack* stack, size_t first) {
  auto& v = (*stack)[first + 1];
  auto device = (*stack)[first].toTensor().device();
  if (device.type() != kDevice) return;
  bool any = false;
  c10::List<std::optional<at::Tensor>> expanded;
  for (const auto& element : v.toListRef()) {
    if (element.isNone() || !element.toTensor().defined()) {
      expanded.push_back(std::nullopt);
      continue;
    }
    auto index = element.toTensor();
    if (index.device().type() == c10::DeviceType::CPU) {
      index = index.to(device);
      any = true;
    }
    if (index.scalar_type() != at::kBool && index.scalar_type() != at::kByte) {
      expanded.push_back(index);
      continue;
    }
    any = true;
    const auto& self = (*stack)[first].toTensor();
    for (int64_t d = 0; d < index.dim(); d++) {
      auto source = static_cast<int64_t>(expanded.size()) + d;
      TORCH_CHECK_INDEX(source < self.dim() && index.size(d) == self.size(source), "The shape of the mask ", index.sizes(),
                        " at index ", d, " does not match the shape of the indexed tensor ", self.sizes(), " at index ", source);
    }
    for (auto& positions : index.nonzero().unbind(1)) expanded.push_back(positions);
  }
  if (any) v = IValue(std::move(expanded));
}

// x[mask] = number needs no positions: it is a select.
bool put_as_masked_fill(const c10::FunctionSchema& schema, Stack* stack, size_t first, size_t count) {
  bool puts = schema.name() == "aten::index_put_" || schema.name() == "aten::_index_put_impl_";
  if (!puts || (*stack)[first + 3].toBool()) return false;
  const auto& self = (*stack)[first].toTensor();
  const auto& value = (*stack)[first + 2].toTensor();
  auto indices = (*stack)[first + 1].toListRef();
  if (indices.size() != 1 || indices[0].isNone() || value.numel() != 1) return false;
  const auto& mask = indices[0].toTensor();
  if (mask.scalar_type() != at::kBool || mask.device() != self.device() || mask.dim() > self.dim()) return false;
  if (value.device() != self.device() && value.dim() != 0) return false;
  for (int64_t d = 0; d < mask.dim(); d++) {
    if (mask.size(d) != self.size(d)) return false;
  }
  auto shape = mask.sizes().vec();
  shape.resize(self.dim(), 1);
  at::Tensor written = self;
  written.masked_fill_(mask.view(shape), value.reshape({}).to(self.scalar_type()));
  torch::jit::drop(*stack, count);
  stack->emplace_back(std::move(written));
  return true;
}

// RuntimeError, as on CPU, for a number that the dtype of the first argument cannot hold. A single float may become infinite:
// PyTorch makes a tensor of a number in this way, and lets the host's do so.
void check_fitting(const std::vector<c10::Argument>& arguments, const Stack& stack, size_t first) {
  const auto& self = stack[first].toTensor();
  auto dtype = self.scalar_type();
  if (self.dim() == 0 && c10::isFloatingType(dtype)) return;
  for (size_t i = 1; i < arguments.size(); i++) {
    const auto& value = stack[first + i];
    if (!value.isScalar() || arguments[i].type()->kind() != c10::TypeKind::NumberType) continue;
    AT_DISPATCH_V2(dtype, "number", AT_WRAP([&] { (void)value.toScalar().to<scalar_t>(); }), AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX),
                   AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), AT_EXPAND(AT_FLOAT8_TYPES), at::kHalf, at::kBFloat16, at::kBool,
                   at::kComplexHalf);
  }
}

void dispatch(const c10::OperatorHandle& handle, Stack* stack) {
  const auto& schema = handle.schema();
  const auto& arguments = schema.arguments();
  const size_t count = arguments.size();
  const size_t first = stack->size() - count;
  check_not_forked();
  Gil gil;
  KeepEntries keep;
  Operator* op = find_operator(handle);
  if ((op->flags & kPythonKernel) != 0 || ((op->flags & kCopy) != 0 && is_transfer(*stack, first))) {
    auto args = py::reinterpret_steal<py::tuple>(python_arguments(*stack, first, count));
    PyObject* kernel = (op->flags & kPythonKernel) != 0 ? op->kernel.ptr() : callbacks().transfer;
    auto result = py::reinterpret_steal<py::object>(PyObject_CallObject(kernel, args.ptr()));
    if (!result) throw python_error();
    push_results(schema, stack, count, (op->flags & kPythonKernel) != 0 ? result : py::object(args[1]));
    return;
  }
  if ((op->flags & kIndexes) != 0) {
    if (put_as_masked_fill(schema, stack, first, count)) return;
    expand_indices(stack, first);
  }
  if ((op->flags & kFitting) != 0) check_fitting(arguments, *stack, first);
  Mode mode = effective_mode();
  for (int attempt = 0;; attempt++) {
    Call c;
    c.op = op;
    c.deferred = mode == Mode::DeferAndFuse;
    for (size_t i = 0; i < count; i++) c.value((*stack)[first + i], op->roles[i], arguments[i]);
    if (c.device < 0) {  // a factory: the device argument, or the current device
      for (size_t i = 0; i < count; i++) {
        const auto& v = (*stack)[first + i];
        if (v.isDevice() && v.toDevice().type() == kDevice) c.device = v.toDevice().index();
      }
      if (c.device < 0) c.device = current_device();
    }
    c.key.add(uint64_t(c.device) | (uint64_t(c10::get_default_dtype_as_scalartype()) << 8) |
              (uint64_t(at::globalContext().float32MatmulPrecision()) << 16));
    c.key.seal();
    if (mode == Mode::Debug) {
      auto args = py::reinterpret_steal<py::object>(python_arguments(*stack, first, count));
      Py_DECREF(call(callbacks().before, "ssO", op->name.c_str(), op->overload.c_str(), args.ptr()));
    }
    Entry* entry = nullptr;
    auto found = op->entries.find(c.key);
    if (found != op->entries.end()) {
      g_counters.hits++;
      entry = found->second.get();
    } else {
      auto args = py::reinterpret_steal<py::object>(python_arguments(*stack, first, count));
      py::object kernel;
      entry = miss(op, c, args.ptr(), kernel);
      if (kernel) {
        auto result = py::reinterpret_steal<py::object>(PyObject_CallObject(kernel.ptr(), args.ptr()));
        if (!result) throw python_error();
        push_results(schema, stack, count, result);
        return;
      }
      if (entry == nullptr) {
        TORCH_INTERNAL_ASSERT(attempt == 0, "tpu: ", op->name, ": the outputs keep changing shape");
        continue;
      }
    }
    if (!entry->empty) add_random(*entry, c);
    bool launches = !entry->empty && !c.deferred;
    auto results = py::reinterpret_steal<py::object>(launches ? launch(*entry, c) : nullptr);
    finish(*entry, c, results.ptr(), schema, stack, count);
    if (c.deferred) flush_if_full();
    if (mode == Mode::Debug && launches) {
      Py_DECREF(call(callbacks().after, "ssOO", op->name.c_str(), op->overload.c_str(), entry->record.ptr(), results.ptr()));
    }
    return;
  }
}

std::vector<std::unique_ptr<torch::Library>>& libraries() {
  static auto* kept = new std::vector<std::unique_ptr<torch::Library>>;
  return *kept;
}

// A thread's own mode travels with PyTorch's debug info: the autograd engine hands that to the threads of a backward, and it
// needs no Python object, which a thread could not release while the interpreter ends.
const auto kModeInfo = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;
struct ModeInfo final : c10::DebugInfoBase {
  Mode mode;
  explicit ModeInfo(Mode m) : mode(m) {}
};

}  // namespace

PyObject* dtype_object(c10::ScalarType dtype) { return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype))); }

py::object scalar_array(const ScalarValue& scalar, c10::DeviceIndex device) {
  static auto* cache = new ska::flat_hash_map<Key, py::object, KeyHash>;
  constexpr size_t kMost = 8192;
  Key key;
  if (scalar.remember) {
    key.add(scalar.tag);
    key.add(scalar.first);
    key.add(scalar.second);
    key.add(device);
    key.seal();
    auto found = cache->find(key);
    if (found != cache->end()) return found->second;
  }
  py::object value = py::int_(static_cast<int64_t>(scalar.first));
  if (scalar.tag == 'd') value = py::float_(double_of(scalar.first));
  if (scalar.tag == 'b') value = py::bool_(scalar.first != 0);
  if (scalar.tag == 'c') value = py::cast(std::complex<double>(double_of(scalar.first), double_of(scalar.second)));
  if (scalar.tag >= kStrong && scalar.tag != kInt64Tag) {
    auto dtype = static_cast<c10::ScalarType>(scalar.tag - kStrong);
    if (c10::isComplexType(dtype)) {
      value = py::cast(std::complex<double>(double_of(scalar.first), double_of(scalar.second)));
    } else if (c10::isFloatingType(dtype)) {
      value = py::float_(double_of(scalar.first));
    }
  }
  auto dtype = scalar.tag == 'd'   ? c10::ScalarType::Double
               : scalar.tag == 'i' ? c10::ScalarType::Long
               : scalar.tag == 'b' ? c10::ScalarType::Bool
               : scalar.tag == 'c' ? c10::ScalarType::ComplexDouble
                                   : static_cast<c10::ScalarType>(scalar.tag - kStrong);
  auto array = py::reinterpret_steal<py::object>(
      call(callbacks().make_scalar, "NOi", dtype_object(dtype), value.ptr(), static_cast<int>(device)));
  if (scalar.remember) {
    if (cache->size() >= kMost) cache->clear();
    (*cache)[key] = array;
  }
  return array;
}

void prepare(Entry& entry) {
  // (execute, handlers)
  auto prepared = py::reinterpret_steal<py::tuple>(call(callbacks().prepare, "O", entry.record.ptr()));
  if (entry.execute) return;  // another thread was here while Python ran
  entry.handlers = prepared[1];
  entry.execute = prepared[0];
}

PyObject* execute(const Entry& entry, PyObject* arguments) {
  static PyObject* consume = PyUnicode_InternFromString("consume_with_handlers");
  py::object running = entry.execute;  // kept alive: the launch lets other threads run, which may clear the caches
  auto raw = py::reinterpret_steal<py::object>(PyObject_CallOneArg(running.ptr(), arguments));
  PyObject* results = raw ? PyObject_CallMethodOneArg(raw.ptr(), consume, entry.handlers.ptr()) : nullptr;
  if (results != nullptr) return results;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  Py_XDECREF(PyObject_CallFunction(callbacks().failed, "ON", entry.record.ptr(), value));
  throw python_error();
}

void set_mode(Mode mode) { g_mode = static_cast<int>(mode); }
void push_mode(Mode mode) { c10::ThreadLocalDebugInfo::_push(kModeInfo, std::make_shared<ModeInfo>(mode)); }
void pop_mode() { c10::ThreadLocalDebugInfo::_pop(kModeInfo); }

Mode effective_mode() {
  auto* local = static_cast<ModeInfo*>(c10::ThreadLocalDebugInfo::get(kModeInfo));
  return local != nullptr ? local->mode : static_cast<Mode>(g_mode.load(std::memory_order_relaxed));
}

void register_overload(const std::string& name) {
  bool fallback = name == "*";
  auto separator = name.find("::");
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, fallback ? "_" : name.substr(0, separator),
                                                  c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto kernel = torch::CppFunction::makeFromBoxedFunction<&dispatch>();
  if (fallback) {
    library->fallback(std::move(kernel));
  } else {
    library->impl(name.substr(separator + 2).c_str(), std::move(kernel));
  }
  libraries().push_back(std::move(library));
}

namespace {
int g_holders = 0;
std::vector<std::unique_ptr<Entry>>& retired() {
  static auto* entries = new std::vector<std::unique_ptr<Entry>>;
  return *entries;
}
}  // namespace

KeepEntries::KeepEntries() { g_holders++; }
KeepEntries::~KeepEntries() {
  if (--g_holders == 0 && !retired().empty() && !is_deferring()) {
    auto freed = std::move(retired());
    retired().clear();
  }
}

void retire(std::unique_ptr<Entry> entry) { retired().push_back(std::move(entry)); }

void clear_entries() {
  KeepEntries keep;
  flush("the caches are cleared");
  forget_fused();
  for (auto& [schema, op] : operators()) {
    for (auto& [key, entry] : op->entries) retire(std::move(entry));
    op->entries.clear();
  }
}

DispatchCounters dispatch_counters() { return g_counters; }

}  // namespace torch_tpu
