#include "trace.h"

#include <c10/util/flat_hash_map.h>

#include <chrono>
#include <memory>
#include <thread>
#include <unordered_map>

#include "callbacks.h"
#include "user_line.h"

namespace torch_tpu {

struct Node {
  Entry* entry;
  uint32_t first_input, inputs, first_scalar, scalars, first_value, values;
  UserLine where;  // in the user's code
};
struct Value {
  StorageContext* owner;
  uint32_t aval;
};
struct Leaf {
  PyObject* base;
  int32_t value;
};

struct Trace {
  c10::DeviceIndex device = 0;
  std::vector<Node> nodes;
  std::vector<int32_t> inputs;
  std::vector<ScalarValue> scalars;
  std::vector<Value> values;
  std::vector<Leaf> leaves;
  ska::flat_hash_map<PyObject*, int32_t> leaf_of;
  Key key;  // all that shapes the fused program, but for which values are live and which leaves die
  int64_t bytes = 0;
  uint64_t beginning = 0;  // the window of the first kWindow entries
  bool after_cut = false;  // whether it starts where the code was found to repeat

  ~Trace() {
    for (auto& leaf : leaves) Py_DECREF(leaf.base);
    for (auto& node : nodes) node.where.release();
  }
};

namespace {

using Clock = std::chrono::steady_clock;

// Repetition is recognised by this many ops in a row: long enough that two equal stretches are the same code.
constexpr size_t kWindow = 16;
constexpr size_t kShortestTrace = 24;
constexpr size_t kMostCuts = 4096;

struct Fused {
  int seen = 0;
  std::unique_ptr<Entry> entry;
};

std::unique_ptr<Trace> g_trace;
std::thread::id g_flushing_thread;
bool g_flushing = false;
int64_t g_most_nodes = 1024, g_most_bytes = int64_t(4) << 30;

ska::flat_hash_map<Key, Fused, KeyHash>& fused_programs() {
  static auto* table = new ska::flat_hash_map<Key, Fused, KeyHash>;
  return *table;
}
// A rolling hash of the last kWindow entries recorded, across traces.
struct Window {
  uint64_t hash = 0;
  std::vector<uint64_t> ring = std::vector<uint64_t>(kWindow, 0);
  size_t next = 0;
  void push(uint64_t entry) {
    constexpr uint64_t kBase = 0x100000001B3ull;
    static const uint64_t kLeaving = [] {
      uint64_t power = 1;
      for (size_t i = 0; i < kWindow; i++) power *= kBase;
      return power;
    }();
    hash = hash * kBase + entry - kLeaving * ring[next];
    ring[next] = entry;
    next = (next + 1) % kWindow;
  }
};
Window g_window;
// The windows at whose end a trace was cut, and how often: meeting one again means that the code is back at that place.
ska::flat_hash_map<uint64_t, int>& cuts() {
  static auto* table = new ska::flat_hash_map<uint64_t, int>;
  return *table;
}
// Set when an optimizer has stepped: the next op begins another step.
bool g_step_ended = false;
int g_steps = 0;

int note_cut() {
  auto& table = cuts();
  if (table.size() >= kMostCuts) table.clear();
  return table[g_window.hash]++;
}

// Another thread may be compiling the trace that our inputs are values of.
void wait_for_flush() {
  while (g_flushing && g_flushing_thread != std::this_thread::get_id()) {
    Py_BEGIN_ALLOW_THREADS;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    Py_END_ALLOW_THREADS;
  }
}

int32_t value_of(Trace& trace, StorageContext* context) {
  if (context->pending >= 0) return context->pending;
  auto found = trace.leaf_of.find(context->base);
  if (found != trace.leaf_of.end()) return found->second;
  auto id = static_cast<int32_t>(trace.values.size());
  trace.values.push_back({nullptr, context->aval});
  trace.leaves.push_back({Py_NewRef(context->base), id});
  trace.leaf_of[context->base] = id;
  trace.key.add(0x4000000000000000ull | context->aval);
  return id;
}

py::object pack(const std::vector<uint64_t>& words, bool floating, c10::DeviceIndex device) {
  auto bytes = py::reinterpret_steal<py::object>(
      PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words.data()), static_cast<Py_ssize_t>(words.size() * 8)));
  return py::reinterpret_steal<py::object>(call(callbacks().pack, "Osi", bytes.ptr(), floating ? "float64" : "int64", static_cast<int>(device)));
}

bool is_floating(const ScalarValue& scalar) {
  if (scalar.tag < kStrong) return scalar.tag == 'd' || scalar.tag == 'c';
  auto dtype = static_cast<c10::ScalarType>(scalar.tag - kStrong);
  return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
}
bool is_complex(const ScalarValue& scalar) {
  return scalar.tag == 'c' || (scalar.tag >= kStrong && c10::isComplexType(static_cast<c10::ScalarType>(scalar.tag - kStrong)));
}

// Adds to the pending Python error where the op that failed was recorded: the line that flushed is not at fault.
void note_line(python_error& error, const Node& node) {
  if (node.where.code == nullptr) return;
  error.restore();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject* file = node.where.code->co_filename;
  PyObject* added = PyObject_CallMethod(value, "add_note", "N", PyUnicode_FromFormat("The op was recorded at %U:%d", file, node.where.line()));
  Py_XDECREF(added);
  PyErr_Restore(type, value, trace);
  throw python_error();
}

// Runs the trace op by op, as strict mode would have.
void run_one_by_one(Trace& trace) {
  std::vector<py::object> bases(trace.values.size());
  std::vector<uint32_t> last_use(trace.values.size(), 0);
  for (uint32_t n = 0; n < trace.nodes.size(); n++) {
    const auto& node = trace.nodes[n];
    for (uint32_t i = 0; i < node.inputs; i++) last_use[trace.inputs[node.first_input + i]] = n;
  }
  for (auto& leaf : trace.leaves) bases[leaf.value] = py::reinterpret_borrow<py::object>(leaf.base);
  for (uint32_t n = 0; n < trace.nodes.size(); n++) {
    auto& node = trace.nodes[n];
    auto arguments = py::reinterpret_steal<py::object>(PyList_New(node.inputs + node.scalars));
    for (uint32_t i = 0; i < node.inputs; i++) {
      PyList_SET_ITEM(arguments.ptr(), i, Py_NewRef(bases[trace.inputs[node.first_input + i]].ptr()));
    }
    for (uint32_t i = 0; i < node.scalars; i++) {
      PyList_SET_ITEM(arguments.ptr(), node.inputs + i, scalar_array(trace.scalars[node.first_scalar + i], trace.device).release().ptr());
    }
    py::object results;
    try {
      if (!node.entry->execute) prepare(*node.entry);
      results = py::reinterpret_steal<py::object>(execute(*node.entry, arguments.ptr()));
    } catch (python_error& error) {
      note_line(error, node);
      throw;
    }
    for (uint32_t i = 0; i < node.values; i++) {
      bases[node.first_value + i] = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(results.ptr(), i));
    }
    for (uint32_t i = 0; i < node.inputs; i++) {  // a value that nothing needs any more gives its memory back
      auto id = trace.inputs[node.first_input + i];
      if (last_use[id] == n && trace.values[id].owner == nullptr) bases[id] = py::object();
    }
  }
  for (size_t id = 0; id < trace.values.size(); id++) {
    auto* owner = trace.values[id].owner;
    if (owner == nullptr) continue;
    auto aval = trace.values[id].aval;
    set_base(owner, bases[id].release().ptr(), aval);
  }
}

std::unique_ptr<Entry> compile_fused(Trace& trace, const std::vector<int32_t>& live, const std::vector<int32_t>& donated) {
  py::list nodes;
  for (const auto& node : trace.nodes) {
    py::list inputs;
    for (uint32_t i = 0; i < node.inputs; i++) inputs.append(trace.inputs[node.first_input + i]);
    nodes.append(py::make_tuple(node.entry->record, inputs, node.first_value, node.where.code_object(), node.where.line()));
  }
  py::list leaves;
  for (const auto& leaf : trace.leaves) {
    const auto& aval = aval_of(trace.values[leaf.value].aval);
    leaves.append(py::make_tuple(leaf.value, aval.shape, py::reinterpret_steal<py::object>(dtype_object(aval.dtype))));
  }
  auto fused = py::reinterpret_steal<py::tuple>(call(callbacks().fuse, "OONNi", nodes.ptr(), leaves.ptr(), py::cast(live).release().ptr(),
                                                     py::cast(donated).release().ptr(), static_cast<int>(trace.device)));
  auto entry = std::make_unique<Entry>();
  entry->record = fused[0];
  entry->execute = fused[1];
  entry->handlers = fused[2];
  return entry;
}

void run_fused(Trace& trace, Entry& entry, const std::vector<int32_t>& live) {
  std::vector<uint64_t> doubles, ints;
  for (const auto& scalar : trace.scalars) {
    if (is_complex(scalar)) {
      doubles.push_back(scalar.first);
      doubles.push_back(scalar.second);
    } else {
      (is_floating(scalar) ? doubles : ints).push_back(scalar.first);
    }
  }
  auto arguments = py::reinterpret_steal<py::object>(PyList_New(static_cast<Py_ssize_t>(trace.leaves.size())));
  for (size_t i = 0; i < trace.leaves.size(); i++) PyList_SET_ITEM(arguments.ptr(), i, Py_NewRef(trace.leaves[i].base));
  if (!doubles.empty() && PyList_Append(arguments.ptr(), pack(doubles, true, trace.device).ptr()) != 0) throw python_error();
  if (!ints.empty() && PyList_Append(arguments.ptr(), pack(ints, false, trace.device).ptr()) != 0) throw python_error();
  auto results = py::reinterpret_steal<py::object>(execute(entry, arguments.ptr()));
  for (size_t i = 0; i < live.size(); i++) {
    auto* owner = trace.values[live[i]].owner;
    if (owner != nullptr) set_base(owner, Py_NewRef(PyList_GET_ITEM(results.ptr(), i)), trace.values[live[i]].aval);
  }
}

// Ends a flush however it goes; a trace that failed leaves its storages without values.
struct Flushing {
  Trace& trace;
  explicit Flushing(Trace& t) : trace(t) {
    g_flushing = true;
    g_flushing_thread = std::this_thread::get_id();
  }
  ~Flushing() {
    for (auto& value : trace.values) {
      if (value.owner == nullptr) continue;
      value.owner->lost = true;
      forget_pending(value.owner);
    }
    g_flushing = false;
  }
};

void run_trace(std::unique_ptr<Trace> trace, const char* reason, bool repeats) {
  auto started = Clock::now();
  KeepEntries keep;
  Flushing flushing(*trace);
  g_step_ended = false;
  std::vector<int32_t> live, donated;
  for (size_t id = 0; id < trace->values.size(); id++) {
    if (trace->values[id].owner != nullptr) live.push_back(static_cast<int32_t>(id));
  }
  for (size_t i = 0; i < trace->leaves.size(); i++) {
    if (Py_REFCNT(trace->leaves[i].base) == 1) donated.push_back(static_cast<int32_t>(i));
  }
  const char* how = "fused";
  auto* key = &trace->key;
  key->add(0x1000000000000000ull | live.size());
  for (auto id : live) key->add(id);
  key->add(0x2000000000000000ull | donated.size());
  for (auto i : donated) key->add(i);
  key->seal();
  auto& fused = fused_programs()[*key];
  fused.seen++;
  double compile_seconds = 0;
  Entry* entry = fused.entry.get();
  if (live.empty()) {
    how = "dropped";  // nobody can see any of it
  } else if (entry == nullptr && fused.seen < 2 && !repeats) {
    // Not seen before, and nothing says that it will be seen again: compiling it would cost more than it could save.
    how = "one by one";
    run_one_by_one(*trace);
  } else {
    if (entry == nullptr) {
      how = "compiled";
      auto compiled = compile_fused(*trace, live, donated);
      compile_seconds = std::chrono::duration<double>(Clock::now() - started).count();
      entry = (fused_programs()[*key].entry = std::move(compiled)).get();
    }
    run_fused(*trace, *entry, live);
  }
  double seconds = std::chrono::duration<double>(Clock::now() - started).count();
  auto where = user_line();
  Py_DECREF(call(callbacks().flushed, "ssnndOid", reason, how, static_cast<Py_ssize_t>(trace->nodes.size()),
                 static_cast<Py_ssize_t>(live.size()), compile_seconds, where.code_object().ptr(), where.line(), seconds));
  where.release();
}

// Cuts where the code repeats itself, so that steps of a loop share an executable however the loop is written: where the last
// kWindow ops are how this trace began, and from then on wherever they are what they were at such a cut.
void cut_at_repetition() {
  auto& trace = *g_trace;
  auto count = trace.nodes.size();
  if (count == kWindow) trace.beginning = g_window.hash;
  if (count < kShortestTrace) return;
  bool known = cuts().find(g_window.hash) != cuts().end();
  bool begins_again = !trace.after_cut && count >= 2 * kWindow && g_window.hash == trace.beginning;
  if (!known && !begins_again) return;
  bool repeats = note_cut() > 0;
  auto device = trace.device;
  run_trace(std::move(g_trace), "the code repeats", repeats);
  if (g_trace == nullptr) {
    g_trace = std::make_unique<Trace>();
    g_trace->device = device;
    g_trace->after_cut = true;
  }
}

uint64_t mixed(const Entry* entry) {
  auto h = reinterpret_cast<uint64_t>(entry) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 32);
}

}  // namespace

void record(Entry& entry, c10::ArrayRef<StorageContext*> inputs, c10::ArrayRef<StorageContext*> owners,
            c10::ArrayRef<ScalarValue> scalars, c10::DeviceIndex device) {
  wait_for_flush();
  if (g_trace != nullptr && g_trace->device != device) flush("another device is used");
  if (g_step_ended && g_trace != nullptr && !g_trace->nodes.empty()) {
    g_step_ended = false;
    run_trace(std::move(g_trace), "an optimizer has stepped", g_steps++ > 0);
  }
  if (g_trace == nullptr) {
    g_trace = std::make_unique<Trace>();
    g_trace->device = device;
  }
  auto& trace = *g_trace;
  Node node{&entry, 0, uint32_t(inputs.size()), uint32_t(trace.scalars.size()), uint32_t(scalars.size()), 0, uint32_t(owners.size()), {}};
  node.first_input = static_cast<uint32_t>(trace.inputs.size());
  for (auto* context : inputs) trace.inputs.push_back(value_of(trace, context));
  trace.key.add(reinterpret_cast<uint64_t>(&entry));
  for (uint32_t i = 0; i < node.inputs; i++) trace.key.add(trace.inputs[node.first_input + i]);
  for (const auto& scalar : scalars) trace.scalars.push_back(scalar);
  node.first_value = static_cast<uint32_t>(trace.values.size());
  size_t next = 0;
  for (const auto& output : entry.outputs) {
    if (output.kind == Output::kFreshEmpty) continue;
    auto* context = owners[next++];
    set_base(context, nullptr, 0);
    context->pending = static_cast<int32_t>(trace.values.size());
    context->trace = &trace;
    context->aval = output.aval;
    trace.values.push_back({context, output.aval});
    if (output.kind == Output::kFresh) trace.bytes += static_cast<int64_t>(context->nbytes);
  }
  node.where = user_line();
  trace.nodes.push_back(node);
  g_window.push(mixed(&entry));
}

void flush(const char* reason) {
  wait_for_flush();
  if (g_trace != nullptr && g_trace->nodes.empty()) g_trace.reset();
  if (g_trace != nullptr) run_trace(std::move(g_trace), reason, false);
}

void flush_if_full() {
  if (g_trace == nullptr) return;
  if (static_cast<int64_t>(g_trace->nodes.size()) >= g_most_nodes) {
    note_cut();  // the next round is cut here too
    flush("the trace is long");
  } else if (g_trace->bytes >= g_most_bytes) {
    flush("the trace's results are large");
  } else {
    cut_at_repetition();
  }
}

void end_step() { g_step_ended = true; }

void forget_pending(StorageContext* context) {
  context->trace->values[context->pending].owner = nullptr;
  context->pending = -1;
  context->trace = nullptr;
}

void set_trace_limits(int64_t nodes, int64_t bytes) {
  g_most_nodes = nodes;
  g_most_bytes = bytes;
}

void forget_fused() {
  for (auto& [key, fused] : fused_programs()) {
    if (fused.entry != nullptr) retire(std::move(fused.entry));
  }
  fused_programs().clear();
}

bool is_deferring() { return g_trace != nullptr; }

}  // namespace torch_tpu
