"""deep_gemm_jit as deep_gemm, beside other packages of that name (small fakes, a process each)."""

import pytest
from other_deep_gemm import OTHER, run


def test_the_module_is_importable_like_a_package_and_imports_no_torch():
    run("""
module = dg.install_as_deep_gemm()
import deep_gemm, deep_gemm.utils, deep_gemm.utils.math, deep_gemm.testing
from deep_gemm.utils.layout import get_tma_aligned_size
from deep_gemm import fp8_gemm_nt
assert deep_gemm is module and importlib.util.find_spec("deep_gemm") is deep_gemm.__spec__ is not None
assert fp8_gemm_nt is dg.fp8_gemm_nt and deep_gemm.__version__ == dg.__version__
assert get_tma_aligned_size(5, 4) == 8 and deep_gemm.ceil_div(5, 4) == 2
assert "fp8_gemm_nt" in dir(deep_gemm) and "align" in dir(deep_gemm)
""")
    run("""
dg.install_as_deep_gemm()
import deep_gemm
deep_gemm.set_compile_mode(0)
assert not hasattr(deep_gemm, "__wrapped__") and "torch" not in sys.modules
""")


def test_T11_a_name_without_arithmetic_is_absent_where_there_is_no_other_package():
    run("""
dg.install_as_deep_gemm()
import deep_gemm
for name in ("fp8_einsum", "mega_mhc", "fp8_fp4_mqa_logits", "fp8_mega_moe", "tf32_hc_prenorm_gemm",
             "m_grouped_fp8_fp4_gemm_nt_contiguous", "bf16_gemm_nt", "k_grouped_fp8_gemm_nt_contiguous"):
    assert getattr(deep_gemm, name, None) is None and not hasattr(deep_gemm, name), name
try:
    deep_gemm.fp8_einsum
except AttributeError as error:
    assert "fp8_einsum" in str(error) and "deep_gemm_jit does not implement it" in str(error)
try:
    import deep_gemm.legacy
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("a module out of nowhere")
""")


def test_T11_before_its_import_the_other_package_is_displaced_and_gives_what_we_lack(folder):
    run(
        """
dg.install_as_deep_gemm()
import deep_gemm
deep_gemm.set_num_sms(64)                       # before theirs is loaded: replayed
deep_gemm.set_pdl(True)
assert deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt and "legacy" not in "".join(sys.modules)
assert deep_gemm.fp8_einsum() == "their einsum"
calls = deep_gemm.calls
assert calls == [("num_sms", 64)], calls        # and their failing set_pdl did no harm
deep_gemm.set_num_sms(32)
assert calls == [("num_sms", 64), ("num_sms", 32)], calls
assert deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt and sys.modules["deep_gemm"] is deep_gemm
import deep_gemm.legacy
from deep_gemm.legacy.kernels import old
assert old() == "their legacy" and deep_gemm.legacy.old is old
assert deep_gemm.utils.rank() == "theirs"
from deep_gemm.utils.dist import init_dist
from deep_gemm.testing.numeric import calc_diff
from deep_gemm.testing import calc_diff as ours
assert (init_dist(), calc_diff(1, 1)) == ("their dist", "their difference") and ours is dg.testing.calc_diff
from deep_gemm.utils.layout import only_theirs, get_mn_major_tma_aligned_tensor as own
assert only_theirs() == "their helper" and own is dg.get_mn_major_tma_aligned_tensor
dg.uninstall_as_deep_gemm()
import deep_gemm
assert deep_gemm.__version__ == "9.9" and deep_gemm.utils.layout.only_theirs() == "their helper"
deep_gemm.fp8_gemm_nt()
assert calls[-1] == "gemm"
""",
        folder(OTHER),
    )


def test_T11_a_loaded_package_is_patched_in_place_and_restored(folder):
    run(
        """
import deep_gemm
from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor as bound_before
theirs, their_set = deep_gemm.fp8_gemm_nt, deep_gemm.set_num_sms
assert dg.install_as_deep_gemm() is deep_gemm is dg.install_as_deep_gemm()
assert deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt and deep_gemm.get_compile_mode() == 0
assert deep_gemm.utils.layout.get_mn_major_tma_aligned_tensor is dg.get_mn_major_tma_aligned_tensor
assert deep_gemm.fp8_einsum() == "their einsum" and not hasattr(deep_gemm, "mega_mhc")
assert deep_gemm.__version__ == "9.9" and bound_before(0) == "their layout"
deep_gemm.set_num_sms(16)
assert deep_gemm.calls == [("num_sms", 16)]
dg.uninstall_as_deep_gemm()
assert deep_gemm.fp8_gemm_nt is theirs and deep_gemm.set_num_sms is their_set
assert not hasattr(deep_gemm, "get_compile_mode")
assert deep_gemm.utils.layout.get_mn_major_tma_aligned_tensor is bound_before
dg.uninstall_as_deep_gemm()
""",
        folder(OTHER),
    )


def test_uninstall_goes_on_where_somebody_removed_what_we_added(folder):
    run(
        """
import deep_gemm
theirs = deep_gemm.fp8_gemm_nt
dg.install_as_deep_gemm()
del deep_gemm.set_compile_mode, deep_gemm.get_compile_mode, deep_gemm.fp8_gemm_nt
dg.uninstall_as_deep_gemm()
assert deep_gemm.fp8_gemm_nt is theirs and not hasattr(deep_gemm, "get_pdl")
assert deep_gemm.set_num_sms.__module__ == "deep_gemm"
""",
        folder(OTHER),
    )


@pytest.mark.parametrize(
    "failure", ["raise RuntimeError('no GPU')", "import not_there", "1 / 0", "raise SystemExit(3)"]
)
def test_T11_a_package_that_cannot_be_imported_counts_as_absent_and_is_reported_once(folder, failure):
    written = run(
        """
logging.basicConfig(level=logging.INFO)
dg.install_as_deep_gemm()
import deep_gemm
assert [getattr(deep_gemm, name, None) for name in ("mega_mhc", "fp8_einsum", "legacy")] == [None] * 3
assert deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt and sys.modules["deep_gemm"] is deep_gemm
assert "deep_gemm.part" not in sys.modules
""",
        folder({"deep_gemm/__init__.py": f"from . import part\n{failure}\n", "deep_gemm/part.py": ""}),
    )
    assert written.count("importing the installed deep_gemm failed") == 1, written


def test_T11_the_copy_inside_vllm_is_found_when_vllm_is_loaded(folder):
    path = folder(
        {
            "vllm/__init__.py": "",
            "vllm/third_party/__init__.py": "",
            "vllm/third_party/deep_gemm/__init__.py": "def mega_mhc(): return 'vendored'\n",
        }
    )
    run(
        """
dg.install_as_deep_gemm()
import deep_gemm
assert not hasattr(deep_gemm, "mega_mhc") and "vllm" not in sys.modules   # nobody uses vLLM here
import vllm
assert deep_gemm.mega_mhc() == "vendored" and deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt
""",
        path,
    )


def test_T11_a_package_that_imports_its_parts_when_asked_may_fail_then(folder):
    written = run(
        """
logging.basicConfig(level=logging.INFO)
dg.install_as_deep_gemm()
import deep_gemm
for _ in range(2):
    assert getattr(deep_gemm, "mega_mhc", None) is None and not hasattr(deep_gemm, "fp8_einsum")
assert deep_gemm.there == 1
deep_gemm.set_num_sms(8)
""",
        folder(
            {
                "deep_gemm/__init__.py": "there = 1\ndef __getattr__(name):\n"
                "    if name == 'mega_mhc': import not_there\n    raise RuntimeError('no GPU')\n"
            }
        ),
    )
    assert written.count("mega_mhc of the displaced") == written.count("fp8_einsum of the displaced") == 1


def test_T11_an_editable_installation_is_found_by_its_own_finder(folder):
    path = folder({f"elsewhere/{name}": text for name, text in OTHER.items()})
    run(
        f"""
class Editable:  # as setuptools makes one: no folder of sys.path has the package
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "deep_gemm":
            init = {str(path / "elsewhere/deep_gemm/__init__.py")!r}
            return importlib.util.spec_from_file_location(name, init)
sys.meta_path.append(Editable)
dg.install_as_deep_gemm()
import deep_gemm
assert deep_gemm.fp8_einsum() == "their einsum" and deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt
""",
        path / "nothing",
    )


def test_T11_many_threads_load_the_displaced_package_once_while_others_set_and_import(folder):
    slow = "print('loaded')\nimport time; time.sleep(0.2)\n"
    written = run(
        """
import threading, time
dg.install_as_deep_gemm()
import deep_gemm
begin, failed = threading.Barrier(9), []
def work(number):
    begin.wait()
    try:
        for step in range(200):
            if number % 3 == 0:
                assert deep_gemm.fp8_einsum() == "their einsum"
            elif number % 3 == 1:
                deep_gemm.set_num_sms(step + 1)
                deep_gemm.set_mk_alignment_for_contiguous_layout(step % 128 + 1)
                deep_gemm.set_pdl(True)
            else:
                import deep_gemm as found
                assert callable(found.fp8_gemm_nt)
    except BaseException as error:
        failed.append(repr(error))
threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
assert sys.modules["deep_gemm"] is deep_gemm and deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt
""",
        folder(OTHER | {"deep_gemm/__init__.py": slow + OTHER["deep_gemm/__init__.py"]}),
    )
    assert written.count("loaded") == 1, written


def test_a_star_import_gives_the_public_names():
    run("""
module = dg.install_as_deep_gemm()
__version__ = "the importer's"
from deep_gemm import *
assert fp8_gemm_nt is dg.fp8_gemm_nt and set_num_sms is module.set_num_sms and utils is module.utils
assert __version__ == "the importer's"
""")


def test_uninstall_restores_a_forbidden_import_and_our_module_lives_on_beside_theirs(folder):
    run(
        """
sys.modules["deep_gemm"] = None            # how a program forbids an import
dg.install_as_deep_gemm()
import deep_gemm as ours
dg.uninstall_as_deep_gemm()
assert sys.modules.pop("deep_gemm") is None
import deep_gemm
assert deep_gemm.__version__ == "9.9" and ours.calls is deep_gemm.calls
assert sys.modules["deep_gemm"] is deep_gemm
""",
        folder(OTHER),
    )


def test_torch_compile_sees_a_module_and_its_functions():
    run("""
import torch
dg.install_as_deep_gemm()
import deep_gemm as outside
a, b = dg.per_token_cast_to_fp8(torch.randn(5, 128)), dg.per_block_cast_to_fp8(torch.randn(8, 128))

def layer(a, b):
    import deep_gemm
    d, e, f = (torch.empty(5, 8) for _ in range(3))
    deep_gemm.fp8_gemm_nt(a, b, d, disable_ue8m0_cast=True)
    outside.gemm_fp8_fp8_bf16_nt(a, b, e)
    outside.fp8_gemm_nt(a, b, f, recipe=(1, 128, 128))
    return d, e, f

compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)(a, b)
for d, e in zip(compiled, layer(a, b), strict=True):
    dg.testing.assert_bitwise_equal(d, e)
""")


def test_a_name_of_2025_reaches_the_same_function():
    run("""
import torch
module = dg.install_as_deep_gemm()
a, b = dg.per_token_cast_to_fp8(torch.ones(2, 128)), dg.per_block_cast_to_fp8(torch.ones(8, 128))
d = torch.empty(2, 8)
module.gemm_fp8_fp8_bf16_nt(lhs=a, rhs=b, out=d)
assert torch.allclose(d, torch.full((2, 8), 128.0), rtol=1e-3)
assert module.get_col_major_tma_aligned_tensor is dg.get_mn_major_tma_aligned_tensor
""")


# ---- plug-ins --------------------------------------------------------------------------------------

PLUGINS = {"vllm.general_plugins": "vllm", "sglang.srt.plugins": "sglang"}


def test_the_adapters_import_no_framework():
    run("""
adapters = dg.integrations
assert adapters.transformers.enable and adapters.vllm.register and adapters.sglang.register
assert not {"torch", "transformers", "vllm", "sglang"} & set(sys.modules)
""")


@pytest.mark.parametrize("variables", [{}, {"DGJ_BACKEND": ""}, {"DGJ_BACKEND": "0"}, {"DGJ_BACKEND": "Off"}])
@pytest.mark.parametrize("group", PLUGINS)
def test_a_plugin_is_inert_until_the_variable_is_set(group, variables):
    run(
        f"""
from importlib.metadata import entry_points
before = dict(os.environ)
for entry in entry_points(group={group!r}):
    assert entry.name == "deep_gemm_jit"
    entry.load()()
assert "deep_gemm" not in sys.modules and "torch" not in sys.modules and dict(os.environ) == before
assert len(entry_points(group={group!r})) == 1
""",
        **variables,
    )


@pytest.mark.parametrize("value", ["1", "moe"])
def test_the_vllm_plugin_sets_what_the_user_left_open_and_says_so(value):
    written = run(
        """
logging.basicConfig(level=logging.INFO)
from deep_gemm_jit.integrations import vllm as plugin
plugin.register()
plugin.register()
import deep_gemm
assert deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt
assert os.environ["VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER"] == "0"
assert os.environ["VLLM_USE_DEEP_GEMM"] == "0"       # the user's
print("MOE", os.environ.get("VLLM_MOE_USE_DEEP_GEMM"))
""",
        DGJ_BACKEND=value,
        VLLM_USE_DEEP_GEMM="0",
    )
    assert f"MOE {'1' if value == 'moe' else None}" in written
    first = next(line for line in written.splitlines() if "DGJ_BACKEND" in line)
    assert f"DGJ_BACKEND={value}" in first and "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER=0" in first
    assert ("kept VLLM_USE_DEEP_GEMM=0" in first) == (value == "moe")


def test_the_sglang_plugin_replaces_the_functions_of_the_loaded_module(folder):
    written = run(
        """
logging.basicConfig(level=logging.INFO)
import deep_gemm
from deep_gemm_jit.integrations import sglang as plugin
plugin.register()
assert deep_gemm.fp8_gemm_nt is dg.fp8_gemm_nt and deep_gemm.fp8_einsum() == "their einsum"
""",
        folder(OTHER),
        DGJ_BACKEND="1",
    )
    assert written.count("DGJ_BACKEND=1") == 1, written


def test_the_sglang_plugin_warns_where_sglang_gave_deep_gemm_up():
    written = run(
        """
from types import SimpleNamespace
logging.basicConfig(level=logging.INFO)
configurer = "sglang.srt.layers.deep_gemm_wrapper.configurer"
sys.modules[configurer] = SimpleNamespace(ENABLE_JIT_DEEPGEMM=False)
from deep_gemm_jit.integrations import sglang as plugin
plugin.register()
""",
        DGJ_BACKEND="moe",
    )
    assert "WARNING" in written and "sgl-deep-gemm" in written


@pytest.mark.parametrize("plugin", PLUGINS.values())
def test_a_server_with_a_misspelt_variable_does_not_start(plugin):
    """Also where the loader of plug-ins logs what they raise and goes on, as SGLang's does."""
    run(
        f"""
from deep_gemm_jit.integrations import {plugin} as plugin
try:
    try:
        plugin.register()
    except Exception:
        pass
except SystemExit as error:
    text = error.code
else:
    raise SystemExit("the server starts")
assert text == "deep_gemm_jit: " + (
    "DGJ_BACKEND is 'linera'; allowed are 1 (linear layers), moe (experts too) and 0 (off)"), text
assert "deep_gemm" not in sys.modules
try:
    dg.integrations.backend_mode()
except ValueError as error:
    assert text.endswith(str(error))
else:
    raise SystemExit("no error")
""",
        DGJ_BACKEND="linera",
    )


# ---- transformers ----------------------------------------------------------------------------------

RECORD = """
import dataclasses
from typing import Any
@dataclasses.dataclass
class DeepGEMM:
    fp8_fp4_matmul: Any
    grouped_fp8_fp4_matmul_nt: Any
    grouped_fp8_fp4_matmul_nn: Any
    grouped_bf16_matmul_nt: Any
    grouped_bf16_matmul_nn: Any
    per_token_cast_to_fp8: Any
    transform_sf_into_required_layout: Any
    fp8_fp4_mega_moe: Any
    get_symm_buffer_for_mega_moe: Any
    transform_weights_for_mega_moe: Any
    m_alignment: int
_DEEPGEMM = None
"""
GATE = "def is_deepgemm_loadable(raise_error=False): return 'theirs'\n"


@pytest.mark.parametrize(
    ("record", "finegrained", "strange"),
    [
        (RECORD + GATE, "", "is_deepgemm_loadable"),
        (RECORD + GATE.replace("def is_", "def can_"), GATE, "is_deepgemm_loadable"),
        (RECORD.replace("    m_alignment: int\n", "    another: int\n") + GATE, GATE, "another, m_alignment"),
        (RECORD.replace("_DEEPGEMM = None", "") + GATE, GATE, "_DEEPGEMM"),
        (RECORD.replace("class DeepGEMM", "class Kernels") + GATE, GATE, "fp8_fp4_matmul"),
    ],
)
def test_another_transformers_is_refused_and_left_as_it_is(folder, record, finegrained, strange):
    path = folder(
        {
            "transformers/__init__.py": "__version__ = '9.0'\n",
            "transformers/integrations/__init__.py": "",
            "transformers/integrations/deepgemm.py": record,
            "transformers/integrations/finegrained_fp8.py": finegrained,
        }
    )
    run(
        f"""
adapter = dg.integrations.transformers
from transformers.integrations import deepgemm, finegrained_fp8
before = dict(vars(deepgemm)), dict(vars(finegrained_fp8))
for _ in range(2):
    try:
        adapter.enable()
    except RuntimeError as error:
        assert {strange!r} in str(error) and "9.0" in str(error), error
    else:
        raise SystemExit("no error")
    assert before == (vars(deepgemm), vars(finegrained_fp8))
adapter.disable()
""",
        path,
    )
