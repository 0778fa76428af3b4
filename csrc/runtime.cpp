// PyTorch's device guard, hooks and generator for the tpu device. Policy (what an event is, how one waits) is in Python.
#include "runtime.h"

#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/autograd.h>

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "callbacks.h"
#include "storage.h"

namespace torch_tpu {
namespace {

std::atomic<int> g_device_count{1};
std::atomic<bool> g_initialized{false};
std::thread::id g_first_thread;          // the one that started PJRT
std::atomic<bool> g_other_threads{false};  // others have chosen a device: those of the autograd engine, most likely
std::atomic<bool> g_in_forked_child{false};  // of a process that had started PJRT, whose threads did not survive the fork
thread_local c10::DeviceIndex t_device = 0;
thread_local c10::StreamId t_streams[kMaxDevices] = {};

// ---- generator: a counter, so that a state is 16 bytes (seed, offset) and every op owns a range of the counter

struct TpuGenerator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;

  explicit TpuGenerator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(kDevice, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  static c10::DeviceType device_type() { return kDevice; }
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device_type() == c10::DeviceType::CPU && state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
                "RNG state must be a torch.ByteTensor on the CPU");
    TORCH_CHECK(state.numel() == 16 && state.is_contiguous(), "RNG state of a tpu generator has 16 bytes, got ", state.numel());
    const auto* bytes = static_cast<const uint8_t*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    std::memcpy(&offset_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* bytes = state.mutable_data_ptr<uint8_t>();
    std::memcpy(bytes, &seed_, 8);
    std::memcpy(bytes + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    auto* from = static_cast<TpuGenerator*>(other.get());
    seed_ = from->seed_;
    offset_ = from->offset_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }
  TpuGenerator* clone_impl() const override {
    auto* copy = new TpuGenerator(device_.index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
};

constexpr uint64_t kOffsetPerOp = 4;  // Philox's block, as CUDA counts: trackers of other libraries assume multiples of 4

// ---- events: an opaque Python state made when the event is recorded

struct Event {
  PyObject* state = nullptr;
  c10::DeviceIndex device = 0;
  ~Event() {
    if (state != nullptr && python_is_alive() && !g_in_forked_child) {
      Gil gil;
      Py_DECREF(state);
    }
  }
};

bool truth(PyObject* result) {
  bool answer = PyObject_IsTrue(result) == 1;
  Py_DECREF(result);
  return answer;
}

void synchronize(c10::DeviceIndex device) {
  if (!g_initialized || !python_is_alive()) return;
  check_not_forked();
  Gil gil;
  Py_DECREF(call(callbacks().synchronize, "i", static_cast<int>(device)));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kDevice;
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto previous = t_device;
    if (device.index() >= 0) set_current_device(device.index());
    return {kDevice, previous};
  }
  c10::Device getDevice() const override { return {kDevice, t_device}; }
  void setDevice(c10::Device device) const override {
    if (g_initialized && std::this_thread::get_id() != g_first_thread) g_other_threads = true;
    if (device.index() >= 0) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) t_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return c10::DeviceCapability(); }

  // Stream ids are labels on the one in-order queue of a device, so ordering between streams always holds.
  c10::Stream getStream(c10::Device device) const override {
    auto index = check_device_index(device.index());
    return c10::Stream(c10::Stream::UNSAFE, {kDevice, index}, t_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, {kDevice, check_device_index(device.index())});
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return c10::Stream(c10::Stream::UNSAFE, {kDevice, check_device_index(device.index())}, next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto index = check_device_index(stream.device_index());
    auto previous = t_streams[index];
    t_streams[index] = stream.id();
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), previous);
  }
  bool queryStream(const c10::Stream& stream) const override {
    if (!g_initialized) return true;
    check_not_forked();
    Gil gil;
    PyObject* state = call(callbacks().record_event, "iO", static_cast<int>(stream.device_index()), Py_False);
    bool done = truth(call(callbacks().query_event, "O", state));
    Py_DECREF(state);
    return done;
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream.device_index()); }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize(check_device_index(device)); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device, c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ", static_cast<int>(device),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) *event = new Event;
    auto* recorded = static_cast<Event*>(*event);
    check_not_forked();
    Gil gil;
    bool timing = flag == c10::EventFlag::BACKEND_DEFAULT;
    PyObject* state = call(callbacks().record_event, "iO", static_cast<int>(stream.device_index()), timing ? Py_True : Py_False);
    Py_XDECREF(recorded->state);
    recorded->state = state;
    recorded->device = stream.device_index();
  }
  void block(void*, const c10::Stream&) const override {}  // one in-order queue: what was recorded runs first anyway
  bool queryEvent(void* event) const override {
    auto* recorded = static_cast<Event*>(event);
    if (recorded == nullptr || recorded->state == nullptr) return true;
    Gil gil;
    return truth(call(callbacks().query_event, "O", recorded->state));
  }
  void synchronizeEvent(void* event) const override {
    auto* recorded = static_cast<Event*>(event);
    if (recorded == nullptr || recorded->state == nullptr) return;
    Gil gil;
    Py_DECREF(call(callbacks().wait_event, "O", recorded->state));
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    auto* first = static_cast<Event*>(start);
    auto* second = static_cast<Event*>(end);
    TORCH_CHECK(first != nullptr && second != nullptr && first->state != nullptr && second->state != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    Gil gil;
    PyObject* result = call(callbacks().elapsed, "OO", first->state, second->state);
    double milliseconds = PyFloat_AsDouble(result);
    Py_DECREF(result);
    return milliseconds;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return g_initialized; }
  void init() const override {
    Gil gil;
    Py_DECREF(call(callbacks().initialize, ""));
  }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return t_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto previous = t_device;
    set_current_device(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    auto previous = t_device;
    if (device >= 0 && device < device_count()) t_device = device;
    return previous;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<TpuGenerator>(check_device_index(device));
  }
  at::Device getDeviceFromPtr(void* pointer) const override {
    auto* context = find_context(reinterpret_cast<uint64_t>(pointer));
    TORCH_CHECK(context != nullptr, "The specified pointer resides in host memory and is not registered with any tpu device.");
    return {kDevice, context->device};
  }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override { resize_storage(storage, nbytes); }
};

}  // namespace

c10::DeviceIndex device_count() { return static_cast<c10::DeviceIndex>(g_device_count.load()); }
void set_device_count(c10::DeviceIndex count) { g_device_count = count; }
c10::DeviceIndex current_device() { return t_device; }
void set_current_device(c10::DeviceIndex device) { t_device = check_device_index(device); }
c10::DeviceIndex check_device_index(c10::DeviceIndex device) {
  TORCH_CHECK(g_device_count > 0, "tpu: TORCH_TPU_PLATFORM=none leaves this process without a tpu device");
  if (device == -1) return t_device;
  TORCH_CHECK(device >= 0 && device < device_count(), "tpu: invalid device index ", static_cast<int>(device), ": there ",
              device_count() == 1 ? "is 1 device" : "are ", device_count() == 1 ? "" : std::to_string(device_count()) + " devices");
  return device;
}
bool is_initialized() { return g_initialized; }
void set_initialized() {
  g_first_thread = std::this_thread::get_id();
  g_initialized = true;
  [[maybe_unused]] static const int watched = pthread_atfork(nullptr, nullptr, [] { g_in_forked_child = true; });
}
void drain_autograd() {
  if (!g_other_threads || g_in_forked_child) return;
  at::AutoGradMode enabled(true);
  for (c10::DeviceIndex device = 0; device < device_count(); device++) {
    auto leaf = new_tensor({1}, {1}, c10::ScalarType::Float, device).set_requires_grad(true);
    auto gradient = new_tensor({1}, {1}, c10::ScalarType::Float, device);
    torch::autograd::grad({leaf.view({1})}, {leaf}, {gradient});  // views only: it runs no program
  }
}
bool in_forked_child() { return g_in_forked_child; }
void check_not_forked() {
  TORCH_CHECK(!g_in_forked_child, "Cannot re-initialize tpu in forked subprocess. To use tpu with multiprocessing, you must use the "
              "'spawn' start method");
}
void register_hooks() {
  [[maybe_unused]] static const bool registered = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
  }();
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto* generators = new std::vector<at::Generator>(kMaxDevices);
  device = check_device_index(device);
  std::lock_guard<std::mutex> lock(mutex);
  auto& generator = (*generators)[device];
  if (!generator.defined()) generator = at::make_generator<TpuGenerator>(device);
  return generator;
}

std::pair<uint64_t, uint64_t> next_random(const at::Generator& given, c10::DeviceIndex device) {
  at::Generator generator = given.defined() ? given : default_generator(device);
  TORCH_CHECK(generator.device().type() == kDevice, "Expected a 'tpu' device type for generator but found '",
              generator.device().type(), "'");
  std::lock_guard<std::mutex> lock(generator.mutex());
  auto* state = static_cast<TpuGenerator*>(generator.unsafeGetGeneratorImpl());
  auto offset = state->offset_;
  state->offset_ += kOffsetPerOp;
  return {state->seed_, offset};
}

namespace {
struct Memory {
  unsigned long long free = 0, total = 0, reserved = 0;
};
Memory ask_memory(c10::DeviceIndex device) {
  Memory memory;
  check_not_forked();
  Gil gil;
  PyObject* result = call(callbacks().memory_info, "i", static_cast<int>(device));
  bool parsed = PyArg_ParseTuple(result, "KKK", &memory.free, &memory.total, &memory.reserved);
  Py_DECREF(result);
  if (!parsed) throw python_error();
  return memory;
}
}  // namespace

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  auto memory = ask_memory(device);
  return {memory.free, memory.total};
}
int64_t reserved_bytes(c10::DeviceIndex device) {
  return g_initialized ? static_cast<int64_t>(ask_memory(device).reserved) : 0;
}

}  // namespace torch_tpu
