// Deferred execution: ops are recorded as a trace of values, and a stretch of them runs as one executable.
//
// A storage holds at most one value; writing renames it. Values that no storage holds at the flush are never produced. All of
// this is guarded by the GIL; a flush moves the trace out before it calls Python, and other threads wait for it to end.
#pragma once
#include <c10/util/ArrayRef.h>

#include <cstdint>

#include "program.h"
#include "storage.h"

namespace torch_tpu {

// Appends one op. `inputs` are the storages that it reads, in the order of the entry's inputs; `owners` those that its results go to.
void record(Entry& entry, c10::ArrayRef<StorageContext*> inputs, c10::ArrayRef<StorageContext*> owners,
            c10::ArrayRef<ScalarValue> scalars, c10::DeviceIndex device);
// Runs everything that has been recorded; `reason` is for people.
void flush(const char* reason);
void flush_if_full();
// A step of a training loop is complete: the next op starts a new trace, once what the step no longer needs has been dropped.
void end_step();
// The storage dies or gets another base: the trace need not produce its value.
void forget_pending(StorageContext* context);
void set_trace_limits(int64_t nodes, int64_t bytes);
void forget_fused();
// Whether ops are recorded that have not run.
bool is_deferring();

}  // namespace torch_tpu
