// The line of the user's code that is running: the innermost frame outside PyTorch and this package.
#pragma once
#include <Python.h>
#include <pybind11/pybind11.h>

namespace torch_tpu {

struct UserLine {
  PyCodeObject* code = nullptr;  // a new reference; null where no Python code is running
  int instruction = -1;          // its offset in the code, in bytes

  int line() const { return code == nullptr ? 0 : PyCode_Addr2Line(code, instruction); }
  pybind11::object code_object() const {
    return pybind11::reinterpret_borrow<pybind11::object>(code == nullptr ? Py_None : reinterpret_cast<PyObject*>(code));
  }
  void release() {
    Py_XDECREF(code);
    code = nullptr;
  }
};

UserLine user_line();

}  // namespace torch_tpu
