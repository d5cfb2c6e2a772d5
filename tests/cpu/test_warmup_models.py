"""The GEMMs of known models, and how many kernels they come to."""

from pathlib import Path

import pytest
from model_configs import (
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    GLM_45,
    GPT_OSS_120B,
    KIMI_K2,
    MINIMAX_M2,
    QWEN3_235B,
)

import deep_gemm_jit as dg
from deep_gemm_jit.models import model_gemms

MOST_ROWS = 8 * 8192 * 8 + 32 * 127  # 8 ranks of 8192 tokens, 8 experts a token, 32 experts here


def shapes(config: dict, **split) -> dict[str, tuple[int, ...]]:
    found = {}
    for gemm in model_gemms(config, **split):
        p = gemm.problem
        found[gemm.layer] = (p.n, p.k) if p.layout == "dense" else (p.n, p.k, p.groups)
    return found


def test_deepseek_v3_with_experts_over_8_ranks():
    assert shapes(DEEPSEEK_V3, ep=8) == {
        "fused_qkv_a_proj": (2112, 7168),
        "q_b_proj": (24576, 1536),
        "kv_b_proj": (32768, 512),
        "o_proj": (7168, 16384),
        "mlp.gate_up_proj": (36864, 7168),
        "mlp.down_proj": (7168, 18432),
        "shared_experts.gate_up_proj": (4096, 7168),
        "shared_experts.down_proj": (7168, 2048),
        "experts.gate_up_proj": (4096, 7168, 32),
        "experts.down_proj": (7168, 2048, 32),
    }


def test_deepseek_v3_over_8_tensor_parallel_ranks():
    # As the frameworks' own warm-ups have them: only the first layer is whole on every rank.
    assert shapes(DEEPSEEK_V3, tp=8) == {
        "fused_qkv_a_proj": (2112, 7168),
        "q_b_proj": (3072, 1536),
        "kv_b_proj": (4096, 512),
        "o_proj": (7168, 2048),
        "mlp.gate_up_proj": (4608, 7168),
        "mlp.down_proj": (7168, 2304),
        "shared_experts.gate_up_proj": (512, 7168),
        "shared_experts.down_proj": (7168, 256),
        "experts.gate_up_proj": (512, 7168, 256),
        "experts.down_proj": (7168, 256, 256),
    }


def test_the_indexer_of_deepseek_v32_is_never_split():
    for split in ({}, {"tp": 8}, {"tp": 8, "ep": 8}):
        found = shapes(DEEPSEEK_V32, **split)
        assert (found["indexer.wq_b"], found["indexer.wk"]) == ((8192, 1536), (128, 7168))


@pytest.mark.parametrize(
    ("config", "split", "first", "second"),
    [
        (KIMI_K2, {"ep": 8}, (4096, 7168, 48), (7168, 2048, 48)),
        (KIMI_K2, {"ep": 32}, (4096, 7168, 12), (7168, 2048, 12)),
        (QWEN3_235B, {"ep": 8}, (3072, 4096, 16), (4096, 1536, 16)),
        (QWEN3_235B, {"tp": 8}, (384, 4096, 128), (4096, 192, 128)),
        (GLM_45, {"ep": 32}, (3072, 5120, 5), (5120, 1536, 5)),
        (MINIMAX_M2, {"ep": 8}, (3072, 3072, 32), (3072, 1536, 32)),
        (GPT_OSS_120B, {"ep": 8}, (5760, 2880, 16), (2880, 2880, 16)),
        (GPT_OSS_120B, {"tp": 4}, (1440, 2880, 128), (2880, 720, 128)),
    ],
)
def test_experts(config, split, first, second):
    found = shapes(config, **split)
    assert (found["experts.gate_up_proj"], found["experts.down_proj"]) == (first, second)


@pytest.mark.parametrize(
    ("config", "tp", "qkv", "o"),
    [
        (QWEN3_235B, 1, (72 * 128, 4096), (4096, 8192)),
        (QWEN3_235B, 8, ((8 + 2) * 128, 4096), (4096, 1024)),  # more ranks than K and V heads
        (GLM_45, 8, ((12 + 2) * 128, 5120), (5120, 12 * 128)),
        (MINIMAX_M2, 8, ((6 + 2) * 128, 3072), (3072, 6 * 128)),
        (GPT_OSS_120B, 1, ((64 + 16) * 64, 2880), (2880, 4096)),
    ],
)
def test_attention(config, tp, qkv, o):
    found = shapes(config, tp=tp)
    assert (found["qkv_proj"], found["o_proj"]) == (qkv, o)


def test_dense_layers_are_there_where_the_config_has_them():
    assert "mlp.down_proj" in shapes(GLM_45) and "mlp.down_proj" not in shapes(QWEN3_235B)
    assert shapes(QWEN3_235B | {"mlp_only_layers": [0]})["mlp.down_proj"] == (4096, 12288)
    assert not any(layer.startswith("shared") for layer in shapes(GLM_45 | {"n_shared_experts": 0}))
    assert shapes(GLM_45 | {"n_shared_experts": None}) == shapes(GLM_45 | {"n_shared_experts": 0})


def test_a_config_of_a_model_that_sees_images_is_that_of_its_language_part():
    assert shapes({"model_type": "kimi_vl", "text_config": DEEPSEEK_V3}) == shapes(DEEPSEEK_V3)


def test_rows_grow_with_tokens_ranks_and_experts():
    rows = {gemm.layer: gemm.max_rows for gemm in model_gemms(DEEPSEEK_V3, ep=8, max_tokens=8192)}
    assert rows["o_proj"] == 8192
    assert rows["experts.down_proj"] >= MOST_ROWS
    assert all(gemm.max_rows is None for gemm in model_gemms(DEEPSEEK_V3, ep=8))


@pytest.mark.parametrize(
    ("config", "split", "words"),
    [
        ({}, {}, ("model_type is None", "deepseek_v3", "qwen3_moe")),
        ({"model_type": "llama"}, {}, ("'llama'", "gpt_oss")),
        (DEEPSEEK_V3 | {"kv_lora_rank": None}, {}, ("kv_lora_rank", "None")),
        (DEEPSEEK_V3 | {"hidden_size": "7168"}, {}, ("hidden_size", "'7168'")),
        (DEEPSEEK_V3, {"tp": 3}, ("num_attention_heads", "128", "3 ranks")),
        (DEEPSEEK_V3, {"ep": 3}, ("number of experts", "256", "3 ranks")),
        (QWEN3_235B, {"tp": 0}, ("tp is 0",)),
        (GPT_OSS_120B, {"tp": 8}, ("experts.down_proj", "k is 360", "multiple of 16")),
        (QWEN3_235B, {"max_tokens": 0}, ("max_tokens is 0",)),
    ],
)
def test_wrong_configs_say_what_is_wrong(config, split, words):
    with pytest.raises(ValueError) as caught:
        model_gemms(config, **split)
    assert all(word in str(caught.value) for word in words), caught.value


def test_deepseek_v3_needs_few_kernels():
    gemms = model_gemms(DEEPSEEK_V3, ep=8, max_tokens=8192)
    counts = [len(dg.all_plans(gemm.problem, "h200", gemm.max_rows)) for gemm in gemms]
    assert 1 <= min(counts) and max(counts) <= 12, counts
    report = dg.plan_report([g.problem for g in gemms], "h200", [g.max_rows for g in gemms])
    assert len(report) <= 150
    assert len(set(report.plans)) == len(report.plans) and len(report.casts) == 5
    assert str(report).startswith(f"{len(report)} kernels for h200")
    serving = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    assert f"tokens): {len(report)} kernels, at most {max(counts)} of a\nproblem" in serving


def test_no_row_count_of_a_linear_layer_leaves_the_set():
    for gemm in model_gemms(DEEPSEEK_V3, ep=8, max_tokens=8192):
        if gemm.problem.layout != "dense":
            continue
        warm = set(dg.all_plans(gemm.problem, "h200", 8192))
        left = [m for m in range(1, 8193) if dg.plan(gemm.problem, m, "h200") not in warm]
        assert not left, (gemm, left[:5])


def boundaries(problem, last: int) -> list[int]:
    """Row counts at which the plan changes, looked for between neighbouring points of a fine grid."""
    grid, m = [], 1
    while m < last:
        grid.append(m)
        m = max(m + 1, m * 17 // 16)
    grid.append(last)
    found = []
    for low, high in zip(grid, grid[1:], strict=False):
        while high - low > 1 and dg.plan(problem, low, "h200") != dg.plan(problem, high, "h200"):
            middle = (low + high) // 2
            if dg.plan(problem, middle, "h200") == dg.plan(problem, low, "h200"):
                low = middle
            else:
                high = middle
        if dg.plan(problem, low, "h200") != dg.plan(problem, high, "h200"):
            found.append(high)
    return found


def test_no_row_count_of_grouped_experts_leaves_the_set():
    for gemm in model_gemms(DEEPSEEK_V3, ep=8, max_tokens=8192):
        if gemm.problem.layout == "dense":
            continue
        warm = set(dg.all_plans(gemm.problem, "h200", gemm.max_rows))
        points = {2**i for i in range(20)} | {MOST_ROWS} | set(boundaries(gemm.problem, MOST_ROWS))
        rows = {m + off for m in points for off in (-1, 0, 1) if 1 <= m + off <= MOST_ROWS}
        left = [m for m in sorted(rows) if dg.plan(gemm.problem, m, "h200") not in warm]
        assert not left, (gemm, left[:5])
