"""Run something once torch._dynamo is there, without importing torch here."""

import sys
from importlib.util import find_spec

__all__ = ["when_dynamo_is_imported"]


class _DynamoWatcher:
    """A finder that calls back after torch._dynamo is imported; importing it here would cost a second."""

    def __init__(self, callback):
        self.callback = callback
        self.searching = False

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch._dynamo" or self.searching:
            return None
        self.searching = True
        try:
            spec = find_spec(fullname)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderWithCallback(spec.loader, self)
        return spec


class _LoaderWithCallback:
    def __init__(self, loader, watcher: _DynamoWatcher):
        self.loader = loader
        self.watcher = watcher

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.watcher in sys.meta_path:
            sys.meta_path.remove(self.watcher)
        self.watcher.callback()


def when_dynamo_is_imported(callback) -> None:
    """Call callback now where torch._dynamo is imported, else at the end of its import."""
    module = sys.modules.get("torch._dynamo")
    # A module that is still being imported has no public functions yet; its importer is not ours to wait for.
    if hasattr(module, "substitute_in_graph"):
        callback()
    else:
        sys.meta_path.insert(0, _DynamoWatcher(callback))
