"""Command line: python -m deep_gemm_jit COMMAND. Exit codes: 0, 1 findings, 2 wrong use."""

import argparse
import importlib
import sys

from deep_gemm_jit.cli.text import open_outputs

# Each is a module of deep_gemm_jit.cli, imported when it is asked for.
COMMANDS = {
    "env": "versions, NVRTC, driver, cache folder, environment variables",
    "explain": "the plan for a shape, and what else was considered",
    "warmup": "compile ahead what shapes or a model can launch",
    "bench": "time a shape on this GPU",
    "cache": "look at the kernel cache, check it, make it smaller",
    "verify": "accuracy of this installation on this device, against float64",
}


def main(arguments: list[str]) -> int:
    """Run one command and return its exit code; argparse ends the process with 2 on wrong arguments."""
    open_outputs()
    parser = argparse.ArgumentParser(prog="python -m deep_gemm_jit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in arguments if not word.startswith("-")), None)
    module = None
    for name, meaning in COMMANDS.items():
        command = commands.add_parser(name, help=meaning, description=meaning)
        if name == asked:
            module = importlib.import_module(f"deep_gemm_jit.cli.{name}")
            module.add_arguments(command)
    args = parser.parse_args(arguments)
    try:
        code = module.run(args)
        sys.stdout.flush()
        return code
    except (ValueError, TypeError, NotImplementedError) as error:  # wrong values
        code, text = 2, str(error)
    except (RuntimeError, OSError) as error:  # a compile or the driver failed, a file cannot be read
        code, text = 1, str(error)
    except KeyboardInterrupt:
        code, text = 130, "interrupted"
    sys.stderr.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
