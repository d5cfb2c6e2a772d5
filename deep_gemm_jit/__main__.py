"""Commands around deep_gemm_jit; `python -m deep_gemm_jit COMMAND --help` explains each.

Exit codes: 0, 1 when something was found wrong or failed, 2 for a wrong use.
"""

import argparse
import importlib
import sys

# Each module has add_parser(commands), which sets `run`, and run(arguments) -> exit code.
MODULES = ("cli_env", "cli_explain", "cli_warmup", "cli_bench")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deep_gemm_jit", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in MODULES:
        importlib.import_module(f"deep_gemm_jit.{name}").add_parser(commands)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    args = parse(arguments)
    try:
        return args.run(args)
    except (ValueError, TypeError, NotImplementedError) as error:  # wrong values
        code, text = 2, str(error)
    except (RuntimeError, OSError) as error:  # compiles and the driver fail like this
        code, text = 1, str(error)
    except KeyboardInterrupt:
        code, text = 130, "interrupted"
    sys.stderr.write(f"{args.command}: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
