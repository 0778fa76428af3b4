// What the dispatcher knows of a signature once Python has answered: keys, entries, run-time numbers.
#pragma once
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>

#include <complex>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "storage.h"

namespace torch_tpu {

namespace py = pybind11;

struct Key {
  c10::SmallVector<uint64_t, 48> words;
  size_t hash = 0;
  void add(uint64_t word) { words.push_back(word); }
  void seal() {
    uint64_t h = 1469598103934665603ull;
    for (auto word : words) {
      h = (h ^ word) * 0x9E3779B97F4A7C15ull;
      h ^= h >> 29;
    }
    hash = h;
  }
  bool operator==(const Key& other) const { return hash == other.hash && words == other.words; }
};
struct KeyHash {
  size_t operator()(const Key& key) const { return key.hash; }
};

struct Output {
  enum Kind : int { kFresh = 0, kWrite = 1, kFreshEmpty = 2 } kind;
  int slot;  // kWrite: whose base is replaced
  std::vector<int64_t> sizes, strides;
  c10::ScalarType dtype;
  uint32_t aval;
};
struct Return {
  enum Kind : int { kOutput = 0, kArgument = 1, kList = 2, kUndefined = 3 } kind;
  std::vector<int> indices;  // of fresh outputs, or of the argument
};
struct Entry {
  py::object record;    // the Python description of the program, for messages
  py::object execute;   // bound LoadedExecutable.execute_sharded; null until the program is first run by itself
  py::object handlers;  // what turns raw results into jax.Arrays
  std::vector<Output> outputs;
  std::vector<Return> returns;
  bool random = false;
  bool empty = false;  // nothing to compute: all results have no elements
};

// A number that is passed at run time.
struct ScalarValue {
  uint64_t tag;  // 'd' 'i' 'b' 'c': a Python number; 256 + dtype: a 0-d tensor of that dtype
  uint64_t first = 0, second = 0;
  bool remember = true;
};
constexpr uint64_t kStrong = 256;
constexpr uint64_t kInt64Tag = kStrong + uint64_t(c10::ScalarType::Long);

inline uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline double double_of(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
// A new reference to the torch.dtype.
PyObject* dtype_object(c10::ScalarType dtype);
// The number as a 0-d array on the device, remembered by value.
py::object scalar_array(const ScalarValue& scalar, c10::DeviceIndex device);

// While one lives, entries that are cleared are kept: a dispatch or a flush may hold them. Needs the GIL.
struct KeepEntries {
  KeepEntries();
  ~KeepEntries();
};
// Takes an entry that nothing will find any more.
void retire(std::unique_ptr<Entry> entry);
// Loads or compiles the executable of an entry that has not run by itself yet. Needs the GIL.
void prepare(Entry& entry);
// Runs an entry on the given inputs and returns the list of new arrays. Throws what the user should see.
PyObject* execute(const Entry& entry, PyObject* arguments);

}  // namespace torch_tpu
