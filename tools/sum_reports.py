"""Adds up the JUnit reports of a folder and prints one closing line: 'N passed, N failed, N skipped'."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(folder: str) -> int:
    total = failed = skipped = 0
    for report in sorted(Path(folder).glob("*.xml")):
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            total += int(suite.get("tests", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
    print(f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 0 if total > failed + skipped and failed == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
