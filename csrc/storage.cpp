// Allocation, resizing and accounting of tpu storages, and pinned host memory.
#include "storage.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "callbacks.h"
#include "runtime.h"
#include "trace.h"

namespace torch_tpu {

Callbacks& callbacks() {
  static Callbacks instance;
  return instance;
}

namespace {
std::atomic<bool> g_shutting_down{false};
std::atomic<int> g_waiting_for_gil{0};
}  // namespace

Gil::Gil() {
  g_waiting_for_gil++;
  state = PyGILState_Ensure();
  g_waiting_for_gil--;
}

bool python_is_alive() { return !g_shutting_down && Py_IsInitialized() != 0; }

void begin_shutdown() {
  g_shutting_down = true;
  Py_BEGIN_ALLOW_THREADS;
  for (int i = 0; i < 1000 && g_waiting_for_gil > 0; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Py_END_ALLOW_THREADS;
}

namespace {

// ---- avals

struct AvalTable {
  std::mutex mutex;
  std::map<std::pair<c10::ScalarType, std::vector<int64_t>>, uint32_t> ids;
  std::vector<const Aval*> avals{nullptr};
};
AvalTable& aval_table() {
  static auto* table = new AvalTable;
  return *table;
}

// ---- addresses

// x86-64: bits 47 to 63 (or 56 to 63 with five-level paging) of a valid address are alike, so addresses from 1 << 57 on are
// never mapped and trap when dereferenced. Elsewhere a reserved, inaccessible range does the same.
uint64_t first_address() {
#if defined(__x86_64__)
  return uint64_t(1) << 57;
#else
  void* range = mmap(nullptr, size_t(1) << 45, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(range != MAP_FAILED, "tpu: cannot reserve an address range for device storages");
  return reinterpret_cast<uint64_t>(range);
#endif
}
uint64_t next_address(size_t nbytes) {
  static std::atomic<uint64_t> cursor{first_address()};
  return cursor.fetch_add((nbytes + 1023) & ~size_t(511));
}

// ---- live storages

struct DeviceCounters {
  std::atomic<int64_t> bytes{0}, peak_bytes{0}, storages{0}, peak_storages{0}, total_bytes{0}, total_storages{0};
};
DeviceCounters g_counters[kMaxDevices];
std::mutex g_live_mutex;
StorageContext* g_live = nullptr;

void raise_to(std::atomic<int64_t>& peak, int64_t value) {
  auto seen = peak.load(std::memory_order_relaxed);
  while (value > seen && !peak.compare_exchange_weak(seen, value)) {
  }
}

void link(StorageContext* context) {
  std::lock_guard<std::mutex> lock(g_live_mutex);
  context->next = g_live;
  if (g_live != nullptr) g_live->previous = context;
  g_live = context;
}

void unlink(StorageContext* context) {
  std::lock_guard<std::mutex> lock(g_live_mutex);
  if (context->previous != nullptr) context->previous->next = context->next;
  if (context->next != nullptr) context->next->previous = context->previous;
  if (g_live == context) g_live = context->next;
}

void free_context(void* pointer) {
  auto* context = static_cast<StorageContext*>(pointer);
  unlink(context);
  if (has_value(context) && python_is_alive() && !in_forked_child()) {
    Gil gil;
    if (context->pending >= 0) forget_pending(context);
    Py_XDECREF(context->base);
  }
  auto& counters = g_counters[context->device];
  counters.bytes -= static_cast<int64_t>(context->nbytes);
  counters.storages -= 1;
  delete context;
}

c10::DataPtr new_data(size_t nbytes, c10::DeviceIndex device) {
  auto* context = new StorageContext;
  context->nbytes = nbytes;
  context->device = device;
  context->address = next_address(nbytes);
  link(context);
  auto& counters = g_counters[device];
  auto size = static_cast<int64_t>(nbytes);
  raise_to(counters.peak_bytes, counters.bytes += size);
  raise_to(counters.peak_storages, counters.storages += 1);
  counters.total_bytes += size;
  counters.total_storages += 1;
  return {reinterpret_cast<void*>(context->address), context, &free_context, c10::Device(kDevice, device)};
}

struct TpuAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override { return new_data(nbytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // the context is not the data: no raw allocation
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "tpu: device memory has no host address; use Tensor.copy_()");
  }
  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {}  // PJRT frees a buffer with its last reference; there is no cache of ours
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // one in-order queue: a buffer outlives its readers
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    check_device_index(device);
    auto counters = memory_counters(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto fill = [](c10::CachingAllocator::Stat& stat, int64_t now, int64_t peak, int64_t total) {
      stat.current = now;
      stat.peak = peak;
      stat.allocated = total;
      stat.freed = total - now;
    };
    fill(stats.allocated_bytes[0], counters.bytes, counters.peak_bytes, counters.total_bytes);
    fill(stats.active_bytes[0], counters.bytes, counters.peak_bytes, counters.total_bytes);
    fill(stats.requested_bytes[0], counters.bytes, counters.peak_bytes, counters.total_bytes);
    auto reserved = std::max(counters.bytes, reserved_bytes(device));
    fill(stats.reserved_bytes[0], reserved, std::max(reserved, counters.peak_bytes), std::max(reserved, counters.total_bytes));
    fill(stats.allocation[0], counters.storages, counters.peak_storages, counters.total_storages);
    fill(stats.active[0], counters.storages, counters.peak_storages, counters.total_storages);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check_device_index(device);
    auto& counters = g_counters[device];
    counters.total_bytes = counters.bytes.load();
    counters.total_storages = counters.storages.load();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    check_device_index(device);
    auto& counters = g_counters[device];
    counters.peak_bytes = counters.bytes.load();
    counters.peak_storages = counters.storages.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    check_device_index(device);
    return memory_info(device);
  }
};
TpuAllocator g_allocator;
REGISTER_ALLOCATOR(kDevice, &g_allocator);

// ---- pinned host memory: ordinary aligned memory that we remember, since PJRT copies from any host memory

struct PinnedAllocator final : c10::Allocator {
  static std::mutex& mutex() {
    static auto* instance = new std::mutex;
    return *instance;
  }
  static std::map<uintptr_t, size_t>& blocks() {
    static auto* instance = new std::map<uintptr_t, size_t>;
    return *instance;
  }
  static void release(void* pointer) {
    {
      std::lock_guard<std::mutex> lock(mutex());
      blocks().erase(reinterpret_cast<uintptr_t>(pointer));
    }
    std::free(pointer);
  }
  c10::DataPtr allocate(size_t nbytes) override {
    void* pointer = nullptr;
    if (posix_memalign(&pointer, 64, std::max<size_t>(nbytes, 1)) != 0) {
      TORCH_CHECK(false, "tpu: cannot allocate ", nbytes, " bytes of pinned host memory");
    }
    std::lock_guard<std::mutex> lock(mutex());
    blocks()[reinterpret_cast<uintptr_t>(pointer)] = std::max<size_t>(nbytes, 1);
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }
};
PinnedAllocator g_pinned;

}  // namespace

uint32_t intern_aval(c10::ScalarType dtype, c10::IntArrayRef shape) {
  auto& table = aval_table();
  std::lock_guard<std::mutex> lock(table.mutex);
  auto key = std::make_pair(dtype, shape.vec());
  auto found = table.ids.find(key);
  if (found != table.ids.end()) return found->second;
  auto id = static_cast<uint32_t>(table.avals.size());
  table.avals.push_back(new Aval{dtype, shape.vec()});  // interned for the life of the process
  table.ids.emplace(std::move(key), id);
  return id;
}

const Aval& aval_of(uint32_t id) {
  auto& table = aval_table();
  std::lock_guard<std::mutex> lock(table.mutex);
  TORCH_CHECK(id > 0 && id < table.avals.size(), "tpu: no such aval: ", id);
  return *table.avals[id];
}

c10::DeviceAllocator* device_allocator() { return &g_allocator; }
c10::Allocator* pinned_allocator() { return &g_pinned; }

bool is_pinned(const void* pointer) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard<std::mutex> lock(PinnedAllocator::mutex());
  auto& blocks = PinnedAllocator::blocks();
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return false;
  auto block = std::prev(after);
  return address < block->first + block->second;
}

StorageContext* find_context(uint64_t address) {
  std::lock_guard<std::mutex> lock(g_live_mutex);
  for (auto* context = g_live; context != nullptr; context = context->next) {
    if (address >= context->address && address < context->address + std::max<size_t>(context->nbytes, 1)) return context;
  }
  return nullptr;
}

StorageContext* context_of(const c10::Storage& storage) {
  const auto& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (C10_LIKELY(data.get_deleter() == &free_context)) return static_cast<StorageContext*>(data.get_context());
  // PyTorch itself wraps our address in a foreign DataPtr (at::from_blob when it serialises a storage).
  auto* context = find_context(reinterpret_cast<uint64_t>(data.get()));
  TORCH_CHECK(context != nullptr, "tpu: the tensor's storage does not live on a tpu device");
  return context;
}

void set_base(StorageContext* context, PyObject* base, uint32_t aval) {
  if (context->pending >= 0) forget_pending(context);
  auto* old = context->base;
  context->base = base;
  context->lost = false;
  context->aval = base == nullptr ? 0 : aval;
  Py_XDECREF(old);
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  auto* context = context_of(storage);
  if (context->pending >= 0 && nbytes > 0) {
    Gil gil;
    flush("a storage is resized");
  }
  auto data = new_data(nbytes, context->device);
  auto* resized = static_cast<StorageContext*>(data.get_context());
  if (context->base != nullptr && nbytes > 0) {
    Gil gil;
    if (nbytes == context->nbytes) {
      set_base(resized, Py_NewRef(context->base), context->aval);
    } else {
      auto dtype = aval_of(context->aval).dtype;
      auto itemsize = c10::elementSize(dtype);
      PyObject* base = call(callbacks().resize, "On", context->base, static_cast<Py_ssize_t>(nbytes / itemsize));
      set_base(resized, base, intern_aval(dtype, {static_cast<int64_t>(nbytes / itemsize)}));
    }
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
}

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, c10::DeviceIndex device) {
  auto nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, new_data(nbytes, device), &g_allocator, /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

std::vector<LiveStorage> live_storages() {
  std::vector<LiveStorage> all;
  std::lock_guard<std::mutex> lock(g_live_mutex);
  for (auto* context = g_live; context != nullptr; context = context->next) {
    all.push_back({Py_XNewRef(context->base), context->nbytes, context->aval, context->device});
  }
  return all;
}

MemoryCounters memory_counters(c10::DeviceIndex device) {
  auto& counters = g_counters[device];
  return {counters.bytes, counters.peak_bytes, counters.storages, counters.peak_storages, counters.total_bytes,
          counters.total_storages};
}

}  // namespace torch_tpu
