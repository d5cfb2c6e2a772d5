#include "bindings/module_flags.hpp"

#include <cstdint>

namespace dgj::bindings {
namespace {

PyObject* g_profiler_globals = nullptr;
PyObject* g_compiler_globals = nullptr;
PyObject* g_profiler_key = nullptr;
PyObject* g_compiling_key = nullptr;
bool g_watched = false;           // else nothing is remembered
std::uint64_t g_assignments = 0;  // that were noticed

bool is_set(PyObject* globals, PyObject* key) {
    PyObject* value = PyDict_GetItemWithError(globals, key);  // borrowed
    if (value == nullptr) PyErr_Clear();
    return value != Py_False;
}

#if PY_VERSION_HEX >= 0x030C0000
int g_watcher = -1;

// Comes before the change itself, but no call of ours comes between the two.
int forget(PyDict_WatchEvent /*event*/, PyObject* /*dict*/, PyObject* /*key*/, PyObject* /*value*/) {
    g_module_flags_clear = false;
    ++g_assignments;
    return 0;
}

bool watch(PyObject* a, PyObject* b) {
    if (g_watcher < 0) g_watcher = PyDict_AddWatcher(&forget);  // a process has eight
    const bool watched = g_watcher >= 0 && PyDict_Watch(g_watcher, a) == 0 && PyDict_Watch(g_watcher, b) == 0;
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
    g_module_flags_clear = false;
    // Again where attaching failed before: these may be other modules than then.
    g_watched = profiler_globals != nullptr && compiler_globals != nullptr &&
                watch(profiler_globals, compiler_globals);
    return true;
}

bool read_module_flags() {
    const std::uint64_t before = g_assignments;  // a key of the modules may compare itself in Python
    const bool set = is_set(g_profiler_globals, g_profiler_key) ||
                     is_set(g_compiler_globals, g_compiling_key);
    g_module_flags_clear = g_watched && !set && g_assignments == before;
    return set;
}

}  // namespace dgj::bindings
