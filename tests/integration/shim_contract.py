"""Call forms that vLLM 0.33, SGLang 0.5.23, transformers 5.24 and torchao 0.18 use on `deep_gemm`.

    python shim_contract.py [module]

Checks names, submodules, and that each call form binds to the Python signature; it launches nothing. Prints
what is missing. Levels: required (decides the exit status), alias (older spellings), optional.
"""

import importlib
import inspect
import sys

P = object()
T = (P, P)
GC, GM = "m_grouped_fp8_gemm_nt_contiguous", "fp8_m_grouped_gemm_nt_masked"
FC, TH = "m_grouped_fp8_fp4_gemm_nt_contiguous", "get_theoretical_mk_alignment_for_contiguous_layout"
SF, LAY = "transform_sf_into_required_layout", "utils.layout.get_mn_major_tma_aligned_"
# fmt: off
FORMS = [  # (who, level, dotted name, args, kwargs)
    ("vllm", "required", "fp8_gemm_nt", (T, T, P), dict(disable_ue8m0_cast=False)),
    ("sglang", "required", "fp8_gemm_nt", (T, T, P), {}),
    # warm-up; (1, 32, 32) for 32-blocks
    ("sglang", "required", "fp8_gemm_nt", (T, T, P),
     dict(recipe=(1, 128, 128))),
    # serving on SM90
    ("vllm", "required", GC, (T, T, P, P),
     dict(disable_ue8m0_cast=False, use_psum_layout=True)),
    ("vllm", "required", GC, (T, T, P, P), dict(disable_ue8m0_cast=False)),  # warm-up
    ("sglang", "required", GC, (T, T, P, P), {}),
    ("sglang-2025", "alias", GC, (T, T, P), dict(m_indices=P)),
    ("upstream", "alias", GC, (T, T, P),
     dict(grouped_layout=P, ensure_zero_padding=True, expected_m_for_psum_layout=None)),
    ("vllm-mxfp8", "optional", GC, (T, T, P, P),
     dict(disable_ue8m0_cast=False, recipe_a=(1, 32), recipe_b=(1, 32))),
    ("torchao", "optional", GC, (T, T, P, P),
     dict(recipe_a=(1, 128), recipe_b=(128, 128), disable_ue8m0_cast=True)),
    ("vllm", "required", "m_grouped_fp8_gemm_nt_masked", (T, T, P, P, 16), dict(disable_ue8m0_cast=False)),
    ("sglang", "required", GM, (T, T, P, P, 16), {}),
    ("sglang", "required", GM, (T, T, P), dict(masked_m=P, expected_m=16)),  # warm-up
    ("vllm-2025", "alias", GM, (T, T, P, P, 16), dict(disable_ue8m0_cast=False)),
    ("sglang-fp4", "optional", GM, (T, T, P, P, 16), dict(recipe_a=(1, 128), recipe_b=(1, 32))),
    ("sglang-sbo", "optional", GM, (T, T, P, P, 16), dict(enable_overlap=True, max_block_n=160, signal=P)),
    ("trtllm", "optional", GM, (T, T, P, P, 16), dict(disable_ue8m0_cast=True)),
    ("vllm", "required", SF, (),
     dict(sf=P, mn=1, k=1, recipe=(1, 128, 128), num_groups=1, is_sfa=False, disable_ue8m0_cast=False)),
    ("sglang-sm100", "required", SF, (P,),
     dict(num_groups=None, mn=1, k=1, recipe=(1, 128, 128), is_sfa=True)),
    ("sglang, hf", "optional", SF, (P, 1, 1), dict(recipe=(1, 32), num_groups=1, disable_ue8m0_cast=False)),
    ("both", "required", "get_mk_alignment_for_contiguous_layout", (), {}),
    ("both", "required", "set_mk_alignment_for_contiguous_layout", (128,), {}),
    ("vllm", "optional", TH, (1024, 32), {}),
    ("sglang", "optional", TH, (32,), {}),
    ("both", "required", "get_num_sms", (), {}),
    ("both", "required", "set_num_sms", (132,), {}),
    ("both", "optional", "set_pdl", (True,), {}),
    ("sglang", "optional", "get_compile_mode", (), {}),
    ("sglang", "optional", "set_compile_mode", (1,), {}),
    ("sglang-det", "optional", "get_deterministic_algorithms", (), {}),
    ("sglang-det", "optional", "use_deterministic_algorithms", (True,), {}),
    ("sglang", "required", LAY + "tensor", (P,), {}),
    ("sglang-sm100", "required", LAY + "packed_ue8m0_tensor", (P,), {}),
    ("sglang-sm100", "required", "utils.get_tma_aligned_size", (1, 4), {}),
    ("sglang-sm100", "required", "utils.align", (1, 4), {}),
    ("vllm", "optional", "get_mn_major_tma_aligned_tensor", (P,), {}),
    ("sglang", "optional", "bf16_gemm_nt", (P, P, P), {}),
    ("sglang-det", "optional", "bf16_gemm_nn", (P, P, P), {}),
    ("sglang, hf", "optional", "m_grouped_bf16_gemm_nt_contiguous", (P, P, P, P), {}),
    ("sglang", "optional", "m_grouped_bf16_gemm_nt_masked", (P, P, P), dict(masked_m=P, expected_m=16)),
    ("sglang", "optional", "fp8_fp4_gemm_nt", (T, T, P),
     dict(recipe_a=(1, 32), recipe_b=(1, 32), disable_ue8m0_cast=True)),
    ("vllm", "optional", FC, (T, T, P, P),
     dict(use_psum_layout=True, recipe_a=(1, 128), recipe_b=(1, 32), disable_ue8m0_cast=False)),
    ("hf", "optional", "fp8_fp4_gemm_nt", (T, T, P), dict(recipe=None)),
    ("hf", "optional", FC, (T, T, P, P), dict(recipe=None, use_psum_layout=False)),
    ("hf", "optional", "m_grouped_fp8_fp4_gemm_nn_contiguous", (T, T, P, P),
     dict(recipe=None, use_psum_layout=False)),
    ("hf", "optional", "m_grouped_bf16_gemm_nt_contiguous", (P, P, P, P), dict(use_psum_layout=False)),
    ("hf", "optional", "m_grouped_bf16_gemm_nn_contiguous", (P, P, P, P), dict(use_psum_layout=False)),
    ("hf", "optional", "utils.per_token_cast_to_fp8", (P,),
     dict(use_ue8m0=True, gran_k=128, use_packed_ue8m0=True)),
    ("both", "optional", "per_block_cast_to_fp8", (P,), dict(use_ue8m0=False, gran_k=128)),
    ("torchao", "optional", "k_grouped_fp8_gemm_nt_contiguous", (T, T, P, [128], P, P),
     dict(recipe=(1, 1, 128))),
    ("dsv4", "optional", "fp8_einsum", ("bhr,hdr->bhd", T, T, P), dict(recipe=(1, 1, 128))),
]
# fmt: on


def main(name):
    module, bad = importlib.import_module(name), 0
    if getattr(module, "__spec__", None) is None:
        print("NOSPEC   required vllm: find_spec would fail")
        bad += 1
    for sub in ("utils", "utils.layout", "utils.math", "testing"):  # frameworks import these as modules
        try:
            importlib.import_module(f"{name}.{sub}")
        except ImportError as error:
            print(f"MISSING  required module {name}.{sub}: {error}")
            bad += 1
    for who, level, dotted, args, kwargs in FORMS:
        found = module
        try:
            for part in dotted.split("."):
                found = getattr(found, part)
        except AttributeError:
            print(f"MISSING  {level:8} {who:12} {dotted}")
            bad += level == "required"
            continue
        try:
            inspect.signature(found).bind(*args, **kwargs)
        except ValueError:
            print(f"NOSIG    {level:8} {who:12} {dotted} (builtin: cannot be checked)")
        except TypeError as error:
            print(f"MISMATCH {level:8} {who:12} {dotted}: {error}")
            bad += level == "required"
    sys.exit(bool(bad))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "deep_gemm")
