#include "bindings/module_flags.hpp"

namespace dgj::bindings {
namespace {

PyObject* g_profiler_globals = nullptr;
PyObject* g_compiler_globals = nullptr;
PyObject* g_profiler_key = nullptr;
PyObject* g_compiling_key = nullptr;
bool g_watched = false;  // else nothing is remembered

bool is_set(PyObject* globals, PyObject* key) {
    PyObject* value = PyDict_GetItemWithError(globals, key);  // borrowed
    if (value == nullptr) PyErr_Clear();
    return value != Py_False;
}

#if PY_VERSION_HEX >= 0x030C0000
// Comes before the change itself, but no call of ours comes between the two.
int forget(PyDict_WatchEvent /*event*/, PyObject* /*dict*/, PyObject* /*key*/, PyObject* /*value*/) {
    g_module_flags_clear = false;
    return 0;
}

bool watch(PyObject* a, PyObject* b) {
    const int watcher = PyDict_AddWatcher(&forget);  // a process has eight
    const bool watched = watcher >= 0 && PyDict_Watch(watcher, a) == 0 && PyDict_Watch(watcher, b) == 0;
    PyErr_Clear();
    return watched;
}
#else
bool watch(PyObject* /*a*/, PyObject* /*b*/) { return false; }
#endif

}  // namespace

bool attach_module_flags(PyObject* profiler_globals, PyObject* compiler_globals) {
    g_profiler_key = PyUnicode_InternFromString("_is_profiler_enabled");
    g_compiling_key = PyUnicode_InternFromString("_is_compiling_flag");
    if (g_profiler_key == nullptr || g_compiling_key == nullptr) return false;
    g_profiler_globals = profiler_globals;
    g_compiler_globals = compiler_globals;
    if (!g_watched && profiler_globals != nullptr && compiler_globals != nullptr)
        g_watched = watch(profiler_globals, compiler_globals);
    return true;
}

bool read_module_flags() {
    const bool set = is_set(g_profiler_globals, g_profiler_key) ||
                     is_set(g_compiler_globals, g_compiling_key);
    g_module_flags_clear = g_watched && !set;
    return set;
}

}  // namespace dgj::bindings
