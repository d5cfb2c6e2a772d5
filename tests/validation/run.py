"""Micro-kernels on a GPU and on the emulator, compared bit by bit.

    run.py --gpu --out FILE               on a machine with a Hopper GPU: results to FILE
    run.py --compare FILE                 anywhere: runs the emulator, prints what differs and a table
    run.py --compare FILE --keep FILE     also writes the results without bytes that nothing needs
    run.py --compare FILE FILE            of a case in both, the later one's result counts

The package must be installed (it compiles the kernels with its NVRTC); the GPU half needs no compiler and no
torch on the device. `--only TEXT` takes the cases whose name contains it.
"""

import argparse
import base64
import concurrent.futures
import dataclasses
import datetime
import hashlib
import json
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from validation import cases, rounding  # noqa: E402

FIRST_ANSWER_S, ANSWER_S = 60, 10


def pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


# ---- the GPU half ----------------------------------------------------------------------------------------


def compile_all(chosen: list[cases.Case]) -> dict[str, bytes | str]:
    """Program text -> cubin, or why there is none."""
    from deep_gemm_jit import _core

    def compile_one(case: cases.Case) -> bytes | str:
        headers = cases.header_closure(case.text, dict(case.headers), _core.embedded_file)
        source = _core.make_source(case.text, headers, "dgj_kernel", "sm_90a")
        try:
            return _core.compile_uncached(source)["cubin"]
        except RuntimeError as error:
            return f"does not compile: {error}"

    different = {case.text: case for case in chosen}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(different, pool.map(compile_one, different.values()), strict=True))


class Worker:
    """gpu.py over a list of jobs, its lines with a deadline."""

    def __init__(self, jobs: list):
        self.file = tempfile.NamedTemporaryFile(suffix=".jobs")
        self.file.write(pickle.dumps(jobs))
        self.file.flush()
        command = [sys.executable, str(HERE / "gpu.py"), self.file.name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: queue.Queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def line(self, seconds: float) -> str | None:
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return f"nothing for {seconds} s"

    def end(self) -> str:
        self.process.kill()
        return self.process.communicate()[1].strip().splitlines()[-1:] or "no message"


def failure(case: cases.Case, why: str) -> dict:
    return {"digest": case.digest(), "error": why}


def run_on_gpu(chosen: list[cases.Case], save) -> dict:
    """Saves what there is before each new process, so that a time limit does not cost the cases before."""
    cubins = compile_all(chosen)
    results = {c.name: failure(c, cubins[c.text]) for c in chosen if isinstance(cubins[c.text], str)}
    jobs = [(c.name, c, cubins[c.text]) for c in chosen if c.name not in results]
    device, date = "", datetime.date.today().isoformat()
    while jobs:
        save({"device": device, "date": date, "cases": results})
        worker = Worker(jobs)
        first = worker.line(FIRST_ANSWER_S)
        if not (first or "").startswith("device "):
            raise SystemExit(f"no GPU: {first} {worker.end()}")
        device = first[7:]
        while jobs:
            started, answer = worker.line(ANSWER_S), worker.line(ANSWER_S)
            name, case, _ = jobs.pop(0)
            if started == f"start {name}" and (answer or "").startswith("done "):
                out = bytes.fromhex(answer[5:])
                results[name] = {"digest": case.digest(), "sha": sha(out), "out": pack(out)}
            else:  # it failed or hangs, and the context with it: the rest in a new process
                results[name] = failure(case, f"{answer or 'the process ended'}: {worker.end()}")
                break
        worker.end()
    save({"device": device, "date": date, "cases": results})
    return {"device": device, "date": date, "cases": results}


# ---- comparison ------------------------------------------------------------------------------------------


# refused: by both; not modelled: by the emulator alone, which says so.
AGREED = ("equal", "measured", "refused", "not modelled", "not run")
ILLEGAL_INSTRUCTION = "gave error 715"


@dataclasses.dataclass(frozen=True)
class Verdict:
    kind: str  # of AGREED, or "differs", "stale" or "failed"
    remark: str = ""
    apart: float = 0.0  # of what is measured: units of rounding.py


def compare_case(case: cases.Case, known: dict | None, ours: bytes | str) -> Verdict:
    """ours: the emulator's bytes, or its fault."""
    fault = ours if isinstance(ours, str) else ""
    if bool(fault) != bool(case.refused) or case.refused not in fault:
        return Verdict("differs", f"the emulator should say {case.refused!r} and says {fault!r}")
    if known is None:
        return Verdict("not run")
    if known["digest"] != case.digest():
        return Verdict("stale", "the case has changed since the GPU ran it")
    if "error" in known:
        agreed = case.gpu_refuses and ILLEGAL_INSTRUCTION in known["error"]
        return Verdict("refused" if agreed else "failed", known["error"])
    if case.refused:
        return Verdict("differs" if case.gpu_refuses else "not modelled", "the GPU runs it")
    if known["sha"] == sha(ours):
        return Verdict("equal")
    if "out" not in known:
        return Verdict("differs", "the results keep no bytes of it")
    theirs = unpack(known["out"])
    if case.rounding is not None:
        apart, remark = rounding.compare(case.rounding, theirs, ours)
        return Verdict("measured" if apart <= rounding.BOUND else "differs", remark, apart)
    wrong = [i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b]
    at = wrong[0] // 4 * 4
    return Verdict(
        "differs",
        f"{len(wrong)} of {len(ours)} bytes, the first at {wrong[0]}: the GPU {theirs[at : at + 8].hex()} "
        f"and the emulator {ours[at : at + 8].hex()}",
    )


def compare(chosen: list[cases.Case], results: dict, seed: int = 0) -> dict[str, Verdict]:
    from validation import emulated

    known = results["cases"]
    return {c.name: compare_case(c, known.get(c.name), emulated.outcome(c, seed)) for c in chosen}


def merged(files: list[Path]) -> dict:
    results = {}
    for part in (json.loads(file.read_text()) for file in files):
        results = {**results, **part, "cases": {**results.get("cases", {}), **part["cases"]}}
    return results


def title(results: dict) -> str:
    return f"{results['device']}, {results['date']}"


def without_equal(results: dict, found: dict[str, Verdict]) -> dict:
    """What a repository keeps: digests, and the bytes only of what is compared with them."""
    kept = {}
    for name, verdict in found.items():
        known = dict(results["cases"].get(name, {}))
        if verdict.kind in ("equal", "not modelled"):
            known.pop("out", None)
        if known:
            kept[name] = known
    return {"device": results["device"], "date": results["date"], "cases": kept}


def table(found: dict[str, Verdict] | None, device: str = "a GPU") -> str:
    """For docs/emulator.md; without results nothing is claimed of a GPU."""
    lines = [f"| micro-kernel | what it shows | cases | {device} |", "|---|---|---|---|"]
    for kernel, what in cases.KERNELS.items():
        names = [c.name for c in cases.all_cases() if c.kernel == kernel]
        said = "not run"
        if found is not None:
            kinds = [found[n].kind for n in names]
            said = ", ".join(f"{kinds.count(k)} {k}" for k in sorted(set(kinds)))
            apart = max(found[n].apart for n in names)
            said += f" (up to {apart:.1f} units apart)" if apart > 0 else ""
        lines.append(f"| {kernel} | {what} | {len(names)} | {said} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="run on the GPU")
    parser.add_argument("--out", type=Path, help="where the GPU's results go")
    parser.add_argument("--compare", type=Path, nargs="+", help="results to compare the emulator with")
    parser.add_argument("--keep", type=Path, help="write the results without bytes that nothing needs")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="the emulator's timing")
    options = parser.parse_args()
    chosen = [case for case in cases.all_cases() if options.only in case.name]
    if options.gpu:
        out = options.out or Path("validation.json")
        results = run_on_gpu(chosen, lambda so_far: out.write_text(json.dumps(so_far, indent=0)))
        expected = {c.name for c in chosen if c.gpu_refuses}
        failed = {n: r["error"] for n, r in results["cases"].items() if "error" in r and n not in expected}
        print(f"{results['device']}: {len(chosen) - len(failed)} of {len(chosen)} cases ran")
        for name, error in failed.items():
            print(f"  {name}: {error}")
        return 1 if failed else 0
    if not options.compare:
        parser.error("--gpu --out FILE, or --compare FILE")
    results = merged(options.compare)
    found = compare(chosen, results, options.seed)
    for name, verdict in found.items():
        if verdict.kind not in ("equal", "refused"):
            print(f"{verdict.kind}: {name} {verdict.remark}")
    kinds = [v.kind for v in found.values()]
    counts = {kind: kinds.count(kind) for kind in kinds}
    print(f"{title(results)}: {', '.join(f'{v} {k}' for k, v in sorted(counts.items()))}")
    if not options.only:
        print(table(found, title(results)))
    if options.keep:
        options.keep.write_text(json.dumps(without_equal(results, found), indent=0) + "\n")
    return 0 if set(counts) <= set(AGREED) else 1


if __name__ == "__main__":
    raise SystemExit(main())
