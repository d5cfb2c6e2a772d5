"""This package under the name `deep_gemm`, for programs that import that.

What a reader can rely on:
- a name stands in the module when its arithmetic exists here. Frameworks take a name's presence for a
  capability, so there is no function that only raises;
- every other name resolves to the package that we displace: another installed `deep_gemm`, or the copy inside
  vLLM. It is imported when such a name is first asked for; without one, or when its import fails (logged
  once), the name is absent: AttributeError;
- the number of SMs, PDL, the alignment of the contiguous layout and the deterministic mode also reach the
  displaced package, under whichever name and whenever they were set: at once when it is loaded and else when
  it gets loaded;
- importing this module imports no torch and no framework.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import deep_gemm_jit
from deep_gemm_jit import settings

__all__ = [
    "SUBMODULES",
    "check_distribution",
    "install_as_deep_gemm",
    "names",
    "resolve",
    "uninstall_as_deep_gemm",
]

SUBMODULES = ("testing", "utils", "utils.layout", "utils.math")

_NAME = "deep_gemm"
_VENDORED = "vllm.third_party.deep_gemm"
# Stands in the __init__.py of our own distribution of that name. A distribution installed over it replaces
# that file and leaves others of ours where they are, so these would prove nothing.
_MARKER = b"from deep_gemm_jit import dropin"

_logger = logging.getLogger("deep_gemm_jit")
_lock = threading.RLock()
_ABSENT = object()

# ---- names ---------------------------------------------------------------------------------------

_THEORETICAL = "get_theoretical_mk_alignment_for_contiguous_layout"
# DeepGEMM's name, in its present and older spellings -> ours.
_FUNCTIONS = {
    "fp8_gemm_nt": "fp8_gemm_nt",
    "fp8_m_grouped_gemm_nt_masked": "m_grouped_fp8_gemm_nt_masked",
    "get_col_major_tma_aligned_tensor": "get_mn_major_tma_aligned_tensor",
    "get_compile_mode": "get_compile_mode",
    "get_deterministic_algorithms": "get_deterministic_algorithms",
    "get_m_alignment_for_contiguous_layout": "get_mk_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout": "get_mk_alignment_for_contiguous_layout",
    "get_num_sms": "get_num_sms",
    "get_pdl": "get_pdl",
    _THEORETICAL: _THEORETICAL,
    "m_grouped_fp8_gemm_nt_contiguous": "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked": "m_grouped_fp8_gemm_nt_masked",
    "set_compile_mode": "set_compile_mode",
}
# Setters whose values the displaced package gets too.
_FORWARDED = (
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "use_deterministic_algorithms",
)
_FUNCTIONS |= {name: name for name in _FORWARDED}
# DeepGEMM's top level has all of its utils; ours are the lazy names of these modules.
_FUNCTIONS |= {name: name for name, module in deep_gemm_jit._LAZY.items() if module in ("layouts", "quant")}


def gemm_fp8_fp8_bf16_nt(lhs, rhs, out) -> None:
    """fp8_gemm_nt under its name and with its parameters of 2025."""
    deep_gemm_jit.fp8_gemm_nt(lhs, rhs, out)


def m_grouped_gemm_fp8_fp8_bf16_nt_contiguous(lhs, rhs, out, m_indices) -> None:
    """m_grouped_fp8_gemm_nt_contiguous under its name and with its parameters of 2025."""
    deep_gemm_jit.m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, out, m_indices)


def m_grouped_gemm_fp8_fp8_bf16_nt_masked(lhs, rhs, out, masked_m, expected_m) -> None:
    """m_grouped_fp8_gemm_nt_masked under its name and with its parameters of 2025."""
    deep_gemm_jit.m_grouped_fp8_gemm_nt_masked(lhs, rhs, out, masked_m, expected_m)


_LEGACY = {
    function.__name__: function
    for function in (
        gemm_fp8_fp8_bf16_nt,
        m_grouped_gemm_fp8_fp8_bf16_nt_contiguous,
        m_grouped_gemm_fp8_fp8_bf16_nt_masked,
    )
}
_OWN = {*_FUNCTIONS, *_LEGACY}


def resolve(name: str, submodule: str = "") -> Any:
    """Return `deep_gemm.<name>`, or `deep_gemm.<submodule>.<name>`: ours, else the displaced package's.

    Raises AttributeError where neither has it. Names with two leading underscores are ours or absent.
    """
    path = f"{submodule}.{name}" if submodule else name
    if path in SUBMODULES:
        return sys.modules.get(f"{_NAME}.{path}") or importlib.import_module(f"deep_gemm_jit.{path}")
    if submodule:
        ours = getattr(importlib.import_module(f"deep_gemm_jit.{submodule}"), name, _ABSENT)
    else:
        ours = _own(name)
    if ours is not _ABSENT:
        return ours
    if name.startswith("__"):  # asked for by inspection and import: no reason to load another package
        raise AttributeError(f"module {_NAME!r} has no attribute {path!r}")
    return _displaced.find(path)


def names(submodule: str = "") -> list[str]:
    """Return the public names of deep_gemm, or of a submodule, that are ours."""
    if not submodule:
        return sorted({*_OWN, "__version__", *(path for path in SUBMODULES if "." not in path)})
    return list(importlib.import_module(f"deep_gemm_jit.{submodule}").__all__)


def _own(name: str) -> Any:
    if name in _LEGACY:
        return _LEGACY[name]
    if name in _FUNCTIONS:
        return getattr(deep_gemm_jit, _FUNCTIONS[name])
    if name == "__all__":  # what `from deep_gemm import *` gives
        return [public for public in names() if not public.startswith("_")]
    return deep_gemm_jit.__version__ if name == "__version__" else _ABSENT


# ---- the displaced package -----------------------------------------------------------------------


class _Displaced:
    """The other deep_gemm: where it is, and what of it is loaded."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        settings.listener = None
        self.module: ModuleType | None = None
        self.setters: dict[str, Callable] = {}  # its own, once it is loaded
        self.submodules: dict[str, ModuleType] = {}  # loaded ones whose place in sys.modules we took
        self.failed: set[str] = set()
        self.loading = False

    def find(self, path: str) -> Any:
        with _lock:
            value: Any = self.module or self.load()
        if value is None:
            raise AttributeError(
                f"module {_NAME!r} has no attribute {path!r}: deep_gemm_jit does not implement it, and no "
                "other deep_gemm could be imported"
            )
        for part in path.split("."):
            value = self.attribute(value, part, path)
        return value

    def attribute(self, owner: Any, name: str, path: str) -> Any:
        """getattr, where a module that imports its parts when they are asked for may fail in any way."""
        try:
            return getattr(owner, name)
        except (AttributeError, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.report(path, "%s of the displaced deep_gemm is absent: %r", path, error)
            raise AttributeError(f"module {_NAME!r} has no attribute {path!r}: {error!r}") from error

    def report(self, what: str, message: str, *values: Any) -> None:
        """Log a failure, once for each `what`."""
        if what not in self.failed:
            self.failed.add(what)
            _logger.warning(message, *values)

    def load(self) -> ModuleType | None:
        if self.loading:  # the package being imported asks for a name of its own
            return None
        self.loading = True
        try:
            sources = {"the installed deep_gemm": self._load_installed, _VENDORED: _load_vendored}
            for what, load in sources.items():
                if what in self.failed:
                    continue
                try:
                    module = load()
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # noqa: BLE001  here a name is missing then
                    message = "names that deep_gemm_jit lacks are absent: importing %s failed: %r"
                    self.report(what, message, what, error)
                    continue
                if module is not None:
                    self.adopt(module)
                    return module
            return None
        finally:
            self.loading = False

    def adopt(self, module: ModuleType) -> None:
        """Take a loaded module, whose attributes are still its own, and replay the settings."""
        self.module = module
        for name in _FORWARDED:
            with contextlib.suppress(AttributeError):
                self.setters[name] = self.attribute(module, name, name)
        settings.listener = self.forward
        for name in list(settings.shared):  # other threads may set one meanwhile
            self.forward(name, settings.shared[name])

    def forward(self, name: str, value: object) -> None:
        setter = self.setters.get(name)
        if setter is None:
            return
        try:
            setter(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  a package that ends the program does not end this one
            self.report(name, "%s(%r) of the displaced deep_gemm failed: %r", name, value, error)

    def _load_installed(self) -> ModuleType | None:
        loaded = sys.modules.get(_NAME)
        if loaded is not None and not _is_ours(loaded):  # somebody kept our module beyond uninstall
            return loaded
        if _installed_spec() is None:
            return None
        # It is imported under its own name, by which its modules may import each other; then we step in.
        ours = _modules()
        for name in ours:
            del sys.modules[name]
        try:
            module = importlib.import_module(_NAME)
        except BaseException:
            for name in _modules():  # what it had imported until then
                if name not in ours:
                    del sys.modules[name]
            raise
        else:
            self.submodules = {name: theirs for name, theirs in _modules().items() if name in ours}
        finally:
            sys.modules.update(ours)  # over theirs, so that no other thread finds none and imports it again
        return module


_displaced = _Displaced()


def _installed_spec() -> ModuleSpec | None:
    """Where another deep_gemm would be imported from; None where there is none but ours."""
    # All finders, as those of editable installations; importlib.util.find_spec would look into sys.modules.
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(_NAME, None)
        if spec is not None:
            return None if spec.origin is None or _is_marked(spec.origin) else spec
    return None


def _is_marked(file: str) -> bool:
    try:
        return _MARKER in Path(file).read_bytes()
    except OSError:
        return False


def _modules() -> dict[str, ModuleType]:
    loaded = list(sys.modules.items())
    return {name: module for name, module in loaded if name == _NAME or name.startswith(f"{_NAME}.")}


def _load_vendored() -> ModuleType | None:
    # Without vLLM in this process nobody counts on its copy, and importing vLLM takes seconds.
    if "vllm" not in sys.modules or importlib.util.find_spec(_VENDORED) is None:
        return None
    return importlib.import_module(_VENDORED)


# ---- installing ----------------------------------------------------------------------------------


def _module(submodule: str = "", path: list[str] | None = None) -> ModuleType:
    """Make deep_gemm or a submodule of it, whose names are those of resolve().

    A plain module with __getattr__: torch.compile takes no instance of a subclass for a module.
    """
    name = f"{_NAME}.{submodule}" if submodule else _NAME
    module = ModuleType(name, __doc__)

    def get(attribute: str) -> Any:
        value = resolve(attribute, submodule)
        if attribute in _OWN:  # ours for good; what is the displaced package's may change there
            setattr(module, attribute, value)
        return value

    spec = ModuleSpec(name, None, origin=__file__, is_package=path is not None)
    if path is not None:
        module.__path__ = spec.submodule_search_locations = path
    module.__file__, module.__spec__ = __file__, spec
    vars(module)["__getattr__"] = get
    vars(module)["__dir__"] = lambda: sorted({*vars(module), *names(submodule)})
    return module


_undo: list[Callable[[], None]] = []


def install_as_deep_gemm() -> ModuleType:
    """Make `import deep_gemm` in this process give this package, and return that module.

    Before anything imported deep_gemm, a module of ours goes into sys.modules. A deep_gemm that is loaded
    already stays, and its attributes are replaced by ours: callers that look them up at each call reach us,
    a function that somebody bound before stays what it was. Names that we lack resolve to the displaced
    package. Where ours is in place already nothing happens. Imports no torch (unless a loaded deep_gemm has),
    and creates no CUDA context.
    """
    with _lock:
        loaded = sys.modules.get(_NAME)
        if loaded is None:
            _put_into_sys_modules()
        elif loaded is not _displaced.module and not _is_ours(loaded):
            _replace_attributes(loaded)
        return sys.modules[_NAME]


def uninstall_as_deep_gemm() -> None:
    """Undo install_as_deep_gemm: modules and attributes are as before. Without one it does nothing."""
    with _lock:
        if (
            _undo and _displaced.module is not None
        ):  # it knows them; the next install tells what is set from now
            settings.shared.clear()
        while _undo:
            _undo.pop()()


def _is_ours(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None) or ""
    return file == __file__ or _is_marked(file)


def _put_into_sys_modules() -> None:
    # Submodules that we lack are imported from the displaced package's folders.
    other = _installed_spec()
    folders = list(other.submodule_search_locations or ()) if other else []
    put = {_NAME: _module(path=folders)}
    for name in SUBMODULES:
        inside = [str(Path(folder, *name.split("."))) for folder in folders]
        inside = [folder for folder in inside if Path(folder).is_dir()]
        put[f"{_NAME}.{name}"] = _module(name, inside if inside or name == "utils" else None)
    before = {name: sys.modules[name] for name in put if name in sys.modules}  # None forbids an import
    sys.modules.update(put)

    def undo() -> None:
        for name, module in put.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        sys.modules.update(before | _displaced.submodules)
        _displaced.forget()

    _undo.append(undo)


def _replace_attributes(loaded: ModuleType) -> None:
    _undo.append(_displaced.forget)
    _displaced.adopt(loaded)
    for name in sorted(_OWN):
        _replace(loaded, name, _own(name))
    for submodule in SUBMODULES[1:]:  # their testing stays: it belongs to their own tests
        theirs = sys.modules.get(f"{_NAME}.{submodule}")
        if theirs is not None:
            ours = importlib.import_module(f"deep_gemm_jit.{submodule}")
            for name in ours.__all__:
                _replace(theirs, name, getattr(ours, name))


def _replace(module: ModuleType, name: str, value: Any) -> None:
    before = vars(module).get(name, _ABSENT)
    setattr(module, name, value)
    if before is _ABSENT:
        _undo.append(lambda: vars(module).pop(name, None))
    else:
        _undo.append(lambda: setattr(module, name, before))


# ---- the distribution deep-gemm-jit-shim -----------------------------------------------------------


def check_distribution(folder: Path, own: str) -> None:
    """Raise ImportError when a distribution other than `own` has installed files into the package `folder`.

    Two distributions in one folder overwrite each other's files, and neither works as it should.
    """
    for record in sorted(folder.parent.glob("*.dist-info/RECORD")):
        name = record.parent.name.split("-")[0].replace("_", "-").lower()
        if name != own and f"\n{folder.name}/".encode() in b"\n" + record.read_bytes():
            raise ImportError(
                f"{folder} holds files of two distributions, {own} and {name}, which overwrite each other. "
                f"Remedy: pip uninstall {own} {name}, then install one of them: {own}; or {name}, which "
                "DGJ_BACKEND=1 or deep_gemm_jit.install_as_deep_gemm() replaces without files of its own"
            )
