// What torch says only through globals of its Python modules: a profiler runs, something is being compiled.
// Two look-ups cost a twentieth of a call, so "neither" is remembered until one of the modules changes.
#pragma once

#include <Python.h>

namespace dgj::bindings {

inline constinit bool g_module_flags_clear = false;  // both were False, and nothing was assigned since

// The modules' dictionaries; nullptr: this torch lacks that module. False with a Python error set.
bool attach_module_flags(PyObject* profiler_globals, PyObject* compiler_globals);

bool read_module_flags();

// One of the two is not False. The GIL is held, and both modules are there.
inline bool module_flag_is_set() { return !g_module_flags_clear && read_module_flags(); }

}  // namespace dgj::bindings
