"""Commands:

python -m benchmarks dense --peer FOLDER --out DIR --minutes 8    speed, host, compile time, correctness
python -m benchmarks grouped --part masked --peer FOLDER          speed of one part of the M-grouped GEMMs
python -m benchmarks correctness --only rows,grid --minutes 4     the sweeps against float64
python -m benchmarks plans --rows 64,2112,7168 4096,4096,7168     every candidate plan of these rows
python -m benchmarks host | compile                               host time of a warm call | first-call times
python -m benchmarks compile-peer --peer FOLDER --part 0/8        fills the peer's own kernel cache
python -m benchmarks report RESULT.json                           table and chart of a file, again
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import report
from .rows import dense_rows, parse_row


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _environment(arguments, peer=None) -> dict:
    from . import environment, peers

    found = environment.describe(arguments.commit)
    if peer is not None:
        found["deep_gemm"] = peers.describe(peer)
    return found


def _peer(arguments):
    from . import peers

    return peers.load_deep_gemm(arguments.peer) if arguments.peer else None


def _finish(result: dict, what: str, arguments) -> None:
    from . import chart

    path = report.write(result, what, arguments.out)
    if result.get("rows") and "burst" in result["rows"][0] and chart.available():
        chart.draw(result, path.with_suffix(".png"))
    say(report.text(result))
    say(f"written to {path}")


def _correctness(names: list[str], seconds: float) -> list[dict]:
    from . import core_api, correctness

    start = time.monotonic()
    count = core_api.compile_ahead(correctness.problems_of(names))
    say(f"compiled {count} plans ahead in {time.monotonic() - start:.1f} s")
    outcomes = []
    deadline = time.monotonic() + seconds
    for name in names:
        (outcome,) = correctness.run([name], deadline - time.monotonic())
        outcomes.append(outcome.as_dict())
        counts = f"{outcome.cases}/{outcome.planned}, {len(outcome.failures)} failed"
        say(f"{name}: {counts}, {outcome.seconds:.1f} s")
        for failure in outcome.failures[:3]:
            say("    " + failure)
    return outcomes


def command_dense(arguments) -> int:
    import torch

    from . import compile_time, core_api, correctness, dense, host

    start = time.monotonic()
    total = arguments.minutes * 60
    peer = _peer(arguments)
    result = {"what": "dense", "environment": _environment(arguments, peer)}

    def left(share: float = 1.0) -> float:
        return max(0.0, total - (time.monotonic() - start)) * share

    rows = arguments.rows or dense_rows()
    core_api.compile_ahead({core_api.problem(row.n, row.k) for row in rows})
    result.update(dense.run(rows, peer, seconds=left(0.5), say=say))
    result["summary"] = report.summarise(result["rows"])
    report.write(result, "dense", arguments.out)  # a later step that fails must not lose the speed
    for name, step in (("host", lambda: host.measure(peer=peer)), ("compile", compile_time.run)):
        if name in arguments.skip:
            continue
        try:
            result[name] = step()
        except Exception as error:  # noqa: BLE001  as above
            result.setdefault("errors", {})[name] = f"{type(error).__name__}: {error}"
            say(f"{name}: {type(error).__name__}: {error}")
        torch.cuda.empty_cache()
    if "correctness" not in arguments.skip:
        names = [name for name in correctness.SWEEPS if name in ("rows", "grid", "options", "repeats")]
        result["correctness"] = _correctness(names, left())
    _finish(result, "dense", arguments)
    wrong = any(row["out_of_bounds"] for row in result["rows"])
    failed = any(outcome["failed"] for outcome in result.get("correctness", []))
    return 1 if wrong or failed or result.get("errors") or not result["complete"] else 0


def command_grouped(arguments) -> int:
    from . import grouped, grouped_correctness
    from .correctness import Outcome

    peer = _peer(arguments)
    result = {"what": f"grouped-{arguments.part}", "environment": _environment(arguments, peer)}
    if arguments.part == "correctness":
        from . import core_api

        core_api.compile_ahead(grouped_correctness.problems())
        deadline = time.monotonic() + arguments.minutes * 60
        outcomes: list[Outcome] = [sweep(deadline) for sweep in grouped_correctness.SWEEPS.values()]
        result["correctness"] = [outcome.as_dict() for outcome in outcomes]
        failed = any(outcome.failures or not outcome.complete for outcome in outcomes)
    else:
        found = grouped.run(arguments.part, peer, seconds=arguments.minutes * 60, say=say)
        result["grouped"] = found
        failed = not found["complete"] or any(row.get("out_of_bounds") for row in found["rows"])
    _finish(result, result["what"], arguments)
    return 1 if failed else 0


def command_correctness(arguments) -> int:
    from . import correctness

    names = arguments.only.split(",") if arguments.only else list(correctness.SWEEPS)
    unknown = [name for name in names if name not in correctness.SWEEPS]
    if unknown:
        say(f"--only: unknown {unknown}; there are {list(correctness.SWEEPS)}")
        return 2
    result = {"what": "correctness", "environment": _environment(arguments)}
    result["correctness"] = _correctness(names, arguments.minutes * 60)
    _finish(result, "correctness", arguments)
    return (
        1
        if any(
            outcome["failed"] or outcome["cases"] < outcome["planned"] for outcome in result["correctness"]
        )
        else 0
    )


def command_plans(arguments) -> int:
    from . import plans

    result = {"what": "plans", "environment": _environment(arguments)}
    result.update(
        plans.run(
            arguments.rows or dense_rows(), seconds=arguments.minutes * 60, limit=arguments.limit, say=say
        )
    )
    say(f"written to {report.write(result, 'plans', arguments.out)}")
    return 0 if result["complete"] else 1


def command_host(arguments) -> int:
    from . import host

    peer = _peer(arguments)
    _finish(
        {"what": "host", "environment": _environment(arguments, peer), "host": host.measure(peer=peer)},
        "host",
        arguments,
    )
    return 0


def command_compile(arguments) -> int:
    from . import compile_time

    _finish(
        {"what": "compile", "environment": _environment(arguments), "compile": compile_time.run()},
        "compile",
        arguments,
    )
    return 0


def command_compile_peer(arguments) -> int:
    from . import peers

    part, parts = (int(value) for value in arguments.part.split("/"))
    module = peers.load_deep_gemm(arguments.peer)
    if arguments.table == "dense":
        count = peers.compile_deep_gemm(module, arguments.rows or dense_rows(), part, parts)
    else:
        from . import grouped

        count = grouped.compile_peer(module, arguments.table, part, parts)
    say(f"part {arguments.part}: {count} rows")
    return 0


def command_report(arguments) -> int:
    from . import chart

    result = report.read(arguments.file)
    if "rows" in result and "burst" in result["rows"][0]:
        result["summary"] = report.summarise(result["rows"])
        if chart.available():
            say(f"chart: {chart.draw(result, Path(arguments.file).with_suffix('.png'))}")
    say(report.markdown(result) if arguments.markdown else report.text(result))
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)

    def add(name, function, *, peer=False, rows=False):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--out", help="folder of the result files (default: benchmarks/results)")
        command.add_argument("--commit", help="commit to record when git cannot say")
        command.add_argument("--minutes", type=float, default=8.0)
        if peer:
            command.add_argument(
                "--peer", required=peer == "required", help="folder that contains the package deep_gemm"
            )
        if rows:
            command.add_argument("--rows", nargs="+", type=parse_row, metavar="M,N,K")
        return command

    dense = add("dense", command_dense, peer=True, rows=True)
    dense.add_argument("--skip", nargs="*", default=[], choices=["correctness", "host", "compile"])
    add("grouped", command_grouped, peer=True).add_argument(
        "--part", required=True,
        choices=["contiguous", "masked", "decode", "ragged", "skew", "scales", "moe", "host", "correctness"],
    )  # fmt: skip
    add("correctness", command_correctness).add_argument("--only", help="sweeps by name, with commas")
    add("plans", command_plans, rows=True).add_argument(
        "--limit", type=int, help="only the first candidates of each row"
    )
    add("host", command_host, peer=True)
    add("compile", command_compile)
    compile_peer = add("compile-peer", command_compile_peer, peer="required", rows=True)
    compile_peer.add_argument("--part", default="0/1")
    compile_peer.add_argument("--table", default="dense", choices=["dense", "contiguous", "masked"])
    shown = add("report", command_report)
    shown.add_argument("file")
    shown.add_argument("--markdown", action="store_true")
    return top


if __name__ == "__main__":
    chosen = parser().parse_args()
    sys.exit(chosen.function(chosen))
