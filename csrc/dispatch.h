// The boxed dispatch path: an op's arguments → a key → a cached executable → one launch.
#pragma once
#include <Python.h>

#include <string>

namespace torch_tpu {

enum class Mode : int { Strict = 0, Debug = 1, DeferAndFuse = 2 };

void set_mode(Mode mode);
// This thread's own mode, until popped; a stack.
void push_mode(Mode mode);
void pop_mode();
Mode effective_mode();

// Registers the boxed kernel for one overload, e.g. "aten::add.Tensor", or for every op that has no kernel ("*").
void register_overload(const std::string& name);
void clear_entries();

struct DispatchCounters {
  uint64_t hits = 0, misses = 0, launches = 0;
};
DispatchCounters dispatch_counters();

}  // namespace torch_tpu
