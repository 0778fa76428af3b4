#include "user_line.h"

#include <c10/util/flat_hash_map.h>

#include <cstring>

// Asking for frames through the public API makes an object of each, which is slow on a path that every recorded op takes, and
// keeps the garbage collector busy. Where the interpreter's own frames are simple enough they are read directly.
#if PY_VERSION_HEX < 0x030D0000
#define TORCH_TPU_INTERPRETER_FRAMES
#define Py_BUILD_CORE
extern "C" {
#include <internal/pycore_frame.h>
}
#undef Py_BUILD_CORE
#endif

namespace torch_tpu {
namespace {

bool is_library_code(PyCodeObject* code) {
  static auto* known = new ska::flat_hash_map<PyCodeObject*, bool>;
  auto found = known->find(code);
  if (found != known->end()) return found->second;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  bool library = file == nullptr || std::strstr(file, "/torch/") != nullptr || std::strstr(file, "/torch_tpu/") != nullptr || file[0] == '<';
  Py_INCREF(code);  // so that its address stays its own
  return (*known)[code] = library;
}

}  // namespace

#ifdef TORCH_TPU_INTERPRETER_FRAMES
UserLine user_line() {
  auto* state = _PyThreadState_UncheckedGet();
  for (auto* frame = state->cframe->current_frame; frame != nullptr; frame = frame->previous) {
    auto* code = frame->f_code;
    if (code == nullptr || is_library_code(code)) continue;
    Py_INCREF(code);
    return {code, static_cast<int>(_PyInterpreterFrame_LASTI(frame) * sizeof(_Py_CODEUNIT))};
  }
  return {};
}
#else
UserLine user_line() {
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (!is_library_code(code)) {
      UserLine line{code, PyFrame_GetLasti(frame)};
      Py_DECREF(frame);
      return line;
    }
    Py_DECREF(code);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  return {};
}
#endif

}  // namespace torch_tpu
