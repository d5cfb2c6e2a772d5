"""Runs the functions marked with @checks; writes a line of JSON for each: name, seconds, error or null."""

import json
import sys
import time
import traceback

_CHECKS = []


def checks(function):
    _CHECKS.append(function)
    return function


def run_checks() -> None:
    only = sys.argv[1:]
    for function in _CHECKS:
        if only and function.__name__ not in only:
            continue
        begin, error = time.perf_counter(), None
        try:
            function()
        except BaseException:
            error = traceback.format_exc()
        row = {"name": function.__name__, "seconds": round(time.perf_counter() - begin, 2), "error": error}
        print("CHECK " + json.dumps(row), flush=True)
