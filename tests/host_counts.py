"""Instructions of a warm call without a GPU, Python to launch: `python -P tests/host_counts.py`.

Needs valgrind with its headers, a C compiler and NVRTC. The launch itself does nothing (claimed_cuda.py), so
what is counted is what the library, torch and Python add to it; an empty Python function is taken off. Unlike
times, counts are the same on every run; cold caches and the driver they do not see.
"""

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import claimed_cuda  # noqa: E402

CALLS = 200
LIBRARY = "libclaim.so"


def _calls() -> tuple[dict, list]:
    """Each call by its name, with weights held as serving frameworks hold them; and what has to live on."""
    import torch

    import deep_gemm_jit as dg

    class Weight(torch.nn.Parameter):
        def __new__(cls, data):
            return super().__new__(cls, data=data, requires_grad=False)

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    def fp8(*shape):
        return torch.zeros(*shape, dtype=torch.uint8).view(torch.float8_e4m3fn)

    n, k, groups, rows = 1024, 512, 256, 512
    b, sfb = Weight(fp8(n, k)), Weight(torch.ones(n // 128, k // 128))
    a, sfa = fp8(rows, k), torch.ones(k // 128, rows).t()
    d = torch.empty(rows, n, dtype=torch.bfloat16)
    lhs, rhs = (a, sfa), (b, sfb)
    news = [((fp8(rows, k), torch.ones(k // 128, rows).t()), torch.empty_like(d)) for _ in range(2 * CALLS)]
    new = iter(news)

    def new_pointers():
        fresh, out = next(new)
        dg.fp8_gemm_nt(fresh, rhs, out)

    op = torch.ops.deep_gemm_jit.fp8_gemm_nt.default
    library = torch.library.Library("deep_gemm_jit_counts", "FRAGMENT")
    library.define("empty(" + str(op._schema).split("(", 1)[1])
    library.impl("empty", lambda *args, **kwargs: None, "CPU")
    empty = torch.ops.deep_gemm_jit_counts.empty.default

    experts = Weight(fp8(groups, n, k)), Weight(torch.ones(groups, n // 128, k // 128))
    planes = fp8(groups, 8, k), torch.ones(groups, 8, k // 128)
    masked_d = torch.empty(groups, 8, n, dtype=torch.bfloat16)
    ids, counts, offsets = (torch.zeros(size, dtype=torch.int32) for size in (rows, groups, groups + 1))
    contiguous, masked = dg.m_grouped_fp8_gemm_nt_contiguous, dg.m_grouped_fp8_gemm_nt_masked
    ragged = dg.m_grouped_fp8_gemm_nt_offsets
    calls = {
        "nothing": lambda: None,
        "dense": lambda: dg.fp8_gemm_nt(lhs, rhs, d),
        "dense, new pointers": new_pointers,
        "empty operator": lambda: empty(a, sfa, b, sfb, d),
        "dense, torch.ops": lambda: op(a, sfa, b, sfb, d),
        "grouped, ids": lambda: contiguous(lhs, experts, d, ids),
        "grouped, psum": lambda: contiguous(lhs, experts, d, counts, use_psum_layout=True),
        "grouped, masked": lambda: masked(planes, experts, masked_d, counts, 1),
        "grouped, offsets": lambda: ragged(lhs, experts, d, offsets),
    }
    return calls, [library, news]


def run(folder: Path) -> None:
    """In a process that has the fake driver: once to compile, once under callgrind."""
    import ctypes

    fake, library = claimed_cuda.attach(folder)
    fake.quiet = 1
    calls, kept = _calls()
    library.count.restype = ctypes.py_object
    library.count.argtypes = [ctypes.py_object, ctypes.c_int, ctypes.c_char_p]
    gc.disable()
    for name, call in calls.items():
        for _ in range(CALLS):
            call()
        if library.under_callgrind():
            library.count(call, CALLS, name.encode())
    del kept


def totals(folder: Path) -> dict[str, int]:
    """Instructions a call, from what callgrind left."""
    found = {}
    for path in sorted(folder.glob("counts.*"), key=lambda path: int(path.suffix[1:])):
        text = path.read_text(errors="replace")
        name = text.split("Client Request: ", 1)[-1].splitlines()[0]
        if "Client Request: " in text:
            found[name] = int(text.split("summary: ", 1)[1].split()[0]) // CALLS
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        claimed_cuda.build_driver(folder)
        claimed_cuda.build_claim(folder, "-DCOUNT_INSTRUCTIONS")
        env = os.environ | {
            "LD_LIBRARY_PATH": str(folder), "DGJ_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"
        }  # fmt: skip
        program = [sys.executable, "-P", __file__, str(folder)]
        subprocess.run(program, env=env, check=True)
        callgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no"]
        subprocess.run(
            [*callgrind, f"--callgrind-out-file={folder / 'counts'}", *program], env=env, check=True
        )
        found = totals(folder)
    for what, count in found.items():
        if what != "nothing":
            print(f"{what:>20} {count - found['nothing']:>7}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
    else:
        main()
