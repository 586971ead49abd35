#include "fast_calls.hpp"

#include <stdexcept>

#include "thread.hpp"

namespace lowtide::shim {

namespace {

bool (*is_asked)() = nullptr;

// Runs `call`, which returns a new reference or null; C++ exceptions become Python's.
template <class Call>
PyObject* guarded(Call call) noexcept {
  try {
    return call();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* none() {
  Py_INCREF(Py_None);
  return Py_None;
}

PyObject* engage(PyObject*, PyObject* arena) {
  return guarded([&] {
    if (!is_asked())
      throw std::runtime_error("another library has replaced torch's allocator since: import it before lowtide");
    Thread::mine().engage(slab_of(arena));
    return none();
  });
}

PyObject* disengage(PyObject*, PyObject* arena) {
  return guarded([&] {
    Thread::mine().disengage(slab_of(arena));
    return none();
  });
}

PyObject* enter(PyObject*, PyObject* table) {
  return guarded([&] {
    Thread::mine().enter(table_of(table));
    return none();
  });
}

PyObject* leave(PyObject*, PyObject*) {
  return guarded([] { return PyLong_FromLongLong(Thread::mine().leave()); });
}

PyObject* at(PyObject*, PyObject* statement) {
  const long long i = PyLong_AsLongLong(statement);
  if (i == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return guarded([&] {
    Thread::mine().at(i);
    return none();
  });
}

PyMethodDef methods[] = {
    {"engage", engage, METH_O, "Serves this thread's tensors from an arena."},
    {"disengage", disengage, METH_O, "Undoes one engage() of this thread and arena."},
    {"enter", enter, METH_O, "Begins a segment whose places are planned."},
    {"leave", leave, METH_NOARGS, "Ends the segment; returns how many allocations lay where planned."},
    {"at", at, METH_O, "Says which statement of the segment comes next."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_fast_calls(PyObject* module, bool (*is_in_force)()) {
  is_asked = is_in_force;
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace lowtide::shim
