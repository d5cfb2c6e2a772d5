"""A test that fails says how to run its last kernel again: wrong results name no seed by themselves."""

import pytest
from emulator import launch


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    if call.when == "setup":
        launch.latest = ""
    report = yield
    if report.failed and launch.latest:
        report.sections.append(("emulator", f"{launch.latest} pytest '{item.nodeid}'"))
    return report
