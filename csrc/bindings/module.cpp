// The extension module deep_gemm_jit._core. Importing it opens no library, reads no environment and makes no
// file.
#include "bindings/bindings.hpp"

PYBIND11_MODULE(_core, m) {
    using namespace dgj::bindings;
    m.doc() = "C++ core of deep_gemm_jit: planner, emitter, compiler, cache, CPU operations and GPU launch.";
    bind_errors(m);
    bind_log(m);
    bind_plan(m);
    bind_compile(m);
    bind_warmup(m);
    bind_cache(m);
    bind_settings(m);
    bind_torch(m);
    bind_gemm_ops(m);
    bind_grouped_ops(m);
    bind_native_ops(m);
    bind_cast_ops(m);
}
