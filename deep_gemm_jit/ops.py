"""The operations as torch operators (namespace deep_gemm_jit), and what the fast path has to know of torch.

register() runs once: at import of deep_gemm_jit where torch is there already, else at the first call or when
torch._dynamo gets imported, which torch.compile does. A public function runs its operation directly where
torch's dispatcher has nothing to do, and calls the operator otherwise: under torch-dispatch and
torch-function modes (fake tensors, functional tensors, tracing), functorch transforms, torch.compile and
torch.export, a profiler, for tensor subclasses and for lazily negated views. Both ways end in the same C++
function, so they give the same bits.

Operators are defined with torch.library. Their implementations are C++ kernels that torch calls without
Python (torch >= 2.10), else functions of _core that it calls as Python. They are forward only: outputs get no
grad history, and an output that requires grad is refused.
"""

import ctypes
import os
import threading

import torch

from deep_gemm_jit import _core, grouped
from deep_gemm_jit.watch import when_dynamo_is_imported

__all__ = ["register"]

_NAMESPACE = "deep_gemm_jit"
_D = 4  # the place of D among the arguments of each operator
_lock = threading.RLock()
_library = None  # must live as long as its operators


def register() -> None:
    """Define the operators and hand torch's parts to the fast path; does nothing the second time."""
    global _library
    with _lock:
        if _library is not None:
            return
        library = torch.library.Library(_NAMESPACE, "FRAGMENT")
        try:
            _define(library)
        except BaseException:
            # For the next attempt: without this torch.ops would keep operators that go with their library.
            _core.withdraw_operators()
            library._destroy()
            raise
        _library = library
        import deep_gemm_jit.quant  # noqa: F401  registers the casts

        when_dynamo_is_imported(_register_polyfills)


def _define(library: torch.library.Library) -> None:
    for schema, fake, _ in _OPERATORS:
        name = _name_of(schema)
        library.define(schema)
        library.impl(name, _with_resolved_negations(name), "Negative")
        torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=library)
    _core.attach_torch(_torch_parts())
    if not _implement_natively():
        for schema, _, _ in _OPERATORS:
            name = _name_of(schema)
            for key in ("CPU", "CUDA"):
                library.impl(name, getattr(_core, f"run_{name}"), key)
    _core.finish_attaching()


def _name_of(schema: str) -> str:
    return schema.partition("(")[0]


def _with_resolved_negations(name: str):
    """What the operator does with lazily negated views: torch's fallback takes D back from an output of the
    operator, and it has none, so that the fallback would read memory that is no longer a tensor."""

    def run(*args) -> None:
        resolved = [x.resolve_neg() if isinstance(x, torch.Tensor) else x for x in args]
        getattr(torch.ops.deep_gemm_jit, name).default(*resolved)
        d, written = args[_D], resolved[_D]
        if d is not written:
            d.copy_(written)

    return run


# ---- what the operator does without data ---------------------------------------------------------


def _fake_fp8_gemm_nt(a, sfa, b, sfb, d, c=None, bias=None, alpha=1.0) -> None:
    for name, tensor, rank in (("a[0]", a, 2), ("b[0]", b, 2), ("d", d, 2), ("c", c, 2), ("bias", bias, 1)):
        if tensor is not None and tensor.dim() != rank:
            raise ValueError(f"fp8_gemm_nt: {name} has {tensor.dim()} dimensions; it must have {rank}")
    for name, tensor in (("a[1]", sfa), ("b[0]", b), ("b[1]", sfb), ("d", d), ("c", c), ("bias", bias)):
        if tensor is not None and tensor.device != a.device:
            raise TypeError(f"fp8_gemm_nt: {name} is on {tensor.device} but a[0] is on {a.device}")
    for name, tensor in (("a[0]", a), ("b[0]", b)):
        if tensor.dtype != torch.float8_e4m3fn:
            raise TypeError(f"fp8_gemm_nt: {name} has dtype {tensor.dtype}; supported: float8_e4m3fn")
    for name, tensor in (("a[1]", sfa), ("b[1]", sfb)):
        if tensor.dtype != torch.float32:
            raise NotImplementedError(f"fp8_gemm_nt: {name} has dtype {tensor.dtype}; supported: float32")
    if d.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise TypeError(f"fp8_gemm_nt: d has dtype {d.dtype}; allowed: bfloat16, float16, float32")
    torch._check(a.shape[1] == b.shape[1], lambda: f"fp8_gemm_nt: a is {a.shape} but b is {b.shape}")
    torch._check(d.shape[0] == a.shape[0], lambda: f"fp8_gemm_nt: a is {a.shape} but d is {d.shape}")
    torch._check(d.shape[1] == b.shape[0], lambda: f"fp8_gemm_nt: b is {b.shape} but d is {d.shape}")
    if c is not None:
        if c.dtype != d.dtype:
            raise TypeError(f"fp8_gemm_nt: c has dtype {c.dtype}; allowed: {d.dtype}, the dtype of d")
        for i in range(2):
            torch._check(c.shape[i] == d.shape[i], lambda: f"fp8_gemm_nt: c is {c.shape} but d is {d.shape}")
    if bias is not None:
        if bias.dtype not in (d.dtype, torch.float32):
            raise TypeError(
                f"fp8_gemm_nt: bias has dtype {bias.dtype}; allowed: {d.dtype}, the dtype of d, or float32"
            )
        torch._check(
            bias.shape[0] == d.shape[1], lambda: f"fp8_gemm_nt: bias is {bias.shape} but d is {d.shape}"
        )


# ---- what the fast path looks at ------------------------------------------------------------------

# The numbers of dgj::DType and of dgj::Device::Type.
_DTYPE_CODES = {
    "float32": 1, "float16": 2, "bfloat16": 3, "float8_e4m3fn": 4, "float8_e5m2": 5, "int8": 6, "uint8": 7,
    "int32": 8, "int64": 9, "float64": 10, "float8_e8m0fnu": 11,
}  # fmt: skip
_DEVICE_CODES = {"cpu": 0, "cuda": 1}
_OTHER_DEVICE = 2


# C++ functions of torch's libraries that tell what the Python functions below do, without a Python call.
# csrc/bindings/native_torch.hpp has their types.
_SYMBOLS = {
    "dispatch_depth": "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    "function_depth": "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "tracing_state": "_ZN5torch3jit6tracer15getTracingStateEv",
    "grad_enabled": "_ZN3c108GradMode10is_enabledEv",
    "is_neg": "_ZN2at6native6is_negERKNS_6TensorE",
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
    "describe": "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor",  # or, in newer versions,
    "describe_as": "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensorb",
    "version_counter": "_ZN5torch8autograd4impl15version_counterERKN2at6TensorE",
    "bump_version": "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
}


# The C interface of torch >= 2.10 for operators; csrc/bindings/torch_abi.hpp.
_OPERATOR_SYMBOLS = {
    "abi_version": "aoti_torch_abi_version",
    "init_impl": "aoti_torch_library_init_impl",
    "implement": "torch_library_impl",
    "delete_library": "aoti_torch_delete_library_object",
    "delete_tensor": "aoti_torch_delete_tensor_object",
}


def _native_functions() -> dict:
    return _addresses(_SYMBOLS)


def _operator_functions() -> dict:
    return _addresses(_OPERATOR_SYMBOLS)


def _addresses(symbols: dict) -> dict:
    """Addresses by name; without those that this torch does not export."""
    try:
        # The library that torch has loaded, and with it those that it needs.
        library = ctypes.CDLL("libtorch_cpu.so", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except (OSError, AttributeError):  # another name, or a system that has no such mode
        return {}
    found = {name: getattr(library, symbol, None) for name, symbol in symbols.items()}
    return {
        name: ctypes.cast(function, ctypes.c_void_p).value
        for name, function in found.items()
        if function is not None
    }


def _implement_natively() -> bool:
    """Let torch call the operators without Python; False where this torch cannot, or loses our exceptions."""
    if not _core.implement_operators(_operator_functions()):
        return False
    try:
        from torch.utils._python_dispatch import _disable_current_modes

        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
            float32 = torch.zeros(1, 16, device="cpu")
            torch.ops.deep_gemm_jit.fp8_gemm_nt.default(float32, float32, float32, float32, float32)
    except TypeError as error:
        if "float8_e4m3fn" in str(error):
            return True
    except Exception:
        pass  # any other type: what follows
    _core.withdraw_operators()
    return False


def _samples() -> tuple:
    """(tensor, address of its C++ object, is_neg, requires_grad) of tensors that differ in all of that.

    The functions above are held against them.
    """
    try:
        from torch.utils._python_dispatch import _disable_current_modes

        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
            plain = torch.zeros(3, 4, dtype=torch.float32, device="cpu")
            tensors = (
                plain, plain[1:, ::2], plain.t()[2], plain[:0], plain[0, 0].to(torch.float8_e4m3fn),
                torch._neg_view(plain), torch.nn.Parameter(plain), torch.nn.Parameter(plain, False),
            )  # fmt: skip
            with torch.inference_mode():
                tensors += (torch.zeros(2, device="cpu"),)  # without a version counter
            return tuple((t, t._cdata, t.is_neg(), t.requires_grad) for t in tensors)
    except (AttributeError, ImportError, RuntimeError, TypeError):
        return ()  # a torch that differs so much is asked through Python


def _torch_parts() -> dict:
    """Objects of torch, None where this torch lacks one: the fast path then always asks the dispatcher."""

    def find(path: str):
        found = torch
        for name in path.split("."):
            found = getattr(found, name, None)
        return found

    def module_globals(path: str, flag: str):
        module = find(path)
        return vars(module) if hasattr(module, flag) else None

    codes = {getattr(torch, name): code for name, code in _DTYPE_CODES.items() if hasattr(torch, name)}

    def describe(t) -> tuple:
        device = t.device
        return (
            t.data_ptr(), codes.get(t.dtype, 0), _DEVICE_CODES.get(device.type, _OTHER_DEVICE),
            device.index or 0, t.dim(), *t.shape, *t.stride(),
        )  # fmt: skip

    def stream_of(device_index: int) -> int:
        return torch._C._cuda_getCurrentRawStream(device_index)

    return {
        "tensor_type": torch.Tensor,
        "parameter_type": torch.nn.Parameter,
        "disabled_dispatch": find("_C._disabled_torch_dispatch_impl"),
        "disabled_function": find("_C._disabled_torch_function_impl"),
        "dispatch_depth": find("_C._len_torch_dispatch_stack"),
        "function_depth": find("_C._len_torch_function_stack"),
        "is_tracing": find("_C._is_tracing"),
        "grad_enabled": torch.is_grad_enabled,
        "profiler_globals": module_globals("autograd.profiler", "_is_profiler_enabled"),
        "compiler_globals": module_globals("compiler", "_is_compiling_flag"),
        "is_neg": find("Tensor.is_neg"),
        "increment_version": find("autograd.graph.increment_version"),
        "exchange_capsule": find("Tensor.__dlpack_c_exchange_api__"),
        "describe": describe,
        "stream_of": stream_of,
        "native": _native_functions(),
        "samples": _samples(),
        **{
            name: getattr(torch.ops.deep_gemm_jit, name).default
            for name in (_name_of(schema) for schema, _, _ in _OPERATORS)
        },
    }


# ---- torch.compile --------------------------------------------------------------------------------


def _traced_fp8_gemm_nt(
    a, b, d, c=None, recipe=None, recipe_a=None, recipe_b=None, compiled_dims="nk", disable_ue8m0_cast=False,
    alpha=None, epilogue=None, *, bias=None,
):  # fmt: skip
    # What torch.compile inlines in place of the C function, which it cannot look into.
    if recipe is not None and tuple(recipe) != (1, 128, 128):
        raise NotImplementedError("fp8_gemm_nt: recipe: supported: None or (1, 128, 128)")
    if recipe_a is not None and tuple(recipe_a) != (1, 128):
        raise NotImplementedError("fp8_gemm_nt: recipe_a: supported: None or (1, 128)")
    if recipe_b is not None and tuple(recipe_b) != (128, 128):
        raise NotImplementedError("fp8_gemm_nt: recipe_b: supported: None or (128, 128)")
    if epilogue is not None:
        raise NotImplementedError("fp8_gemm_nt: epilogue: supported: None. Use alpha, bias and c")
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        raise TypeError("fp8_gemm_nt: a and b must each be a tuple or list of two: (values, scales)")
    (a_values, a_scales), (b_values, b_scales) = a, b
    torch.ops.deep_gemm_jit.fp8_gemm_nt.default(
        a_values, a_scales, b_values, b_scales, d, c, bias, 1.0 if alpha is None else alpha
    )


# (schema, fake implementation, what torch.compile inlines); see grouped.OPERATORS.
_OPERATORS = (
    (
        "fp8_gemm_nt(Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(a!) d, Tensor? c=None, "
        "Tensor? bias=None, float alpha=1.0) -> ()",
        _fake_fp8_gemm_nt,
        _traced_fp8_gemm_nt,
    ),
    *grouped.OPERATORS,
)


def _register_polyfills() -> None:
    for schema, _, traced in _OPERATORS:
        torch.compiler.substitute_in_graph(getattr(_core, _name_of(schema)))(traced)
