"""The GEMMs of known models, from the config.json that Hugging Face checkpoints carry.

Layers are merged and split as serving frameworks do: Q, K and V are one GEMM, so are gate and up projection;
tensor parallelism (TP) splits heads and intermediate sizes, expert parallelism (EP) splits the experts and
leaves each of them whole. Routers, embeddings and the output head stay in 16 bits there and are left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from deep_gemm_jit._core import GemmProblem

__all__ = ["MODEL_TYPES", "ModelGemm", "model_gemms"]


@dataclass(frozen=True)
class ModelGemm:
    """One GEMM of a model, as one rank runs it."""

    layer: str  # "o_proj"
    problem: GemmProblem
    max_rows: int | None  # rows of A that it can get; None: any


@dataclass(frozen=True)
class _Linear:
    layer: str
    n: int
    k: int


@dataclass(frozen=True)
class _Experts:
    count: int  # of the whole model
    top_k: int
    intermediate: int  # of one expert


class _Config:
    """config.json, with errors that name the field."""

    def __init__(self, values: Mapping[str, Any], tp: int):
        self._values = values
        self.tp = tp

    def get(self, name: str, default: int | None = None) -> int:
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(
                f"model_gemms: '{name}' of the model config is {value!r}; it must be a whole number"
            )
        return value

    def split(self, what: str, extent: int, parts: int) -> int:
        if extent % parts:
            raise ValueError(
                f"model_gemms: {what} is {extent}, which {parts} ranks cannot share; allowed: its divisors"
            )
        return extent // parts


def model_gemms(
    config: Mapping[str, Any],
    tp: int = 1,
    ep: int = 1,
    max_tokens: int | None = None,
    d_dtype: str = "bfloat16",
    batch_invariant: bool = False,
) -> list[ModelGemm]:
    """Return the FP8 GEMMs that one rank of a model runs: its linear layers and its experts.

    config: the contents of config.json; its model_type must be one of MODEL_TYPES. tp: ranks that share the
    heads and the intermediate sizes. ep: ranks that share the experts, each of them whole; with 1, experts
    are split like other layers. max_tokens: tokens of a batch on one rank; None: any. d_dtype: of D.
    batch_invariant: of linear layers; M-grouped GEMMs always are.
    Raises ValueError for an unknown model type, a missing field, or sizes that tp or ep do not divide.
    """
    _check_object("the model config", config)
    config = config.get("text_config") or config  # of models that see images, too
    _check_object("text_config", config)
    name = config.get("model_type")
    if not isinstance(name, str) or name not in MODEL_TYPES:
        raise ValueError(f"model_gemms: model_type is {name!r}; known: {', '.join(sorted(MODEL_TYPES))}")
    for what, value in (("tp", tp), ("ep", ep), ("max_tokens", 1 if max_tokens is None else max_tokens)):
        if value < 1:
            raise ValueError(f"model_gemms: {what} is {value}; it must be at least 1")
    fields = _Config(config, tp)
    linear, experts = MODEL_TYPES[name](fields)
    common = {"d_dtype": d_dtype}
    gemm = partial(_gemm, rows=max_tokens, batch_invariant=batch_invariant, **common)
    gemms = [gemm(row.layer, n=row.n, k=row.k) for row in linear]
    if experts is not None:
        gemms += _expert_gemms(fields, experts, ep, max_tokens, common)
    return gemms


def _check_object(what: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"model_gemms: {what} is {value!r}; it must be an object with names and values")


def _expert_gemms(
    config: _Config, experts: _Experts, ep: int, max_tokens: int | None, common: dict
) -> list[ModelGemm]:
    hidden = config.get("hidden_size")
    groups = config.split("the number of experts", experts.count, ep)
    intermediate = experts.intermediate
    if ep == 1:
        intermediate = config.split("the intermediate size of an expert", intermediate, config.tp)
    rows = None
    if max_tokens is not None:
        # All tokens of all ranks may come here. Masked: so many rows for each expert, used or not. Else: one
        # row for each token and expert, and each expert's rows padded to a multiple of 128.
        tokens = max_tokens * ep
        rows = max(groups * tokens, tokens * min(experts.top_k, groups) + 127 * groups)
    return [
        _gemm(layer, rows, n=n, k=k, layout="m_grouped", groups=groups, **common)
        for layer, n, k in (
            ("experts.gate_up_proj", 2 * intermediate, hidden),
            ("experts.down_proj", hidden, intermediate),
        )
    ]


def _gemm(layer: str, rows: int | None, **problem: Any) -> ModelGemm:
    try:
        return ModelGemm(layer, GemmProblem(**problem), rows)
    except ValueError as error:  # such as a part of an expert that no kernel can take
        raise ValueError(f"model_gemms: {layer} over this many ranks: {error}") from None


# ---- parts of models -----------------------------------------------------------------------------


def _grouped_query_attention(c: _Config) -> list[_Linear]:
    hidden, heads = c.get("hidden_size"), c.get("num_attention_heads")
    head = c.get("head_dim", hidden // max(1, heads))
    own_heads = c.split("num_attention_heads", heads, c.tp)
    kv_heads = c.get("num_key_value_heads", heads)
    # With more ranks than K and V heads, each of these is held by several ranks.
    own_kv = 1 if kv_heads < c.tp else c.split("num_key_value_heads", kv_heads, c.tp)
    return [
        _Linear("qkv_proj", (own_heads + 2 * own_kv) * head, hidden),
        _Linear("o_proj", hidden, own_heads * head),
    ]


def _latent_attention(c: _Config) -> list[_Linear]:
    hidden = c.get("hidden_size")
    heads = c.split("num_attention_heads", c.get("num_attention_heads"), c.tp)
    nope, rope, value = c.get("qk_nope_head_dim"), c.get("qk_rope_head_dim"), c.get("v_head_dim")
    q_rank, kv_rank = c.get("q_lora_rank"), c.get("kv_lora_rank")
    rows = [
        _Linear("fused_qkv_a_proj", q_rank + kv_rank + rope, hidden),
        _Linear("q_b_proj", heads * (nope + rope), q_rank),
        _Linear("kv_b_proj", heads * (nope + value), kv_rank),
        _Linear("o_proj", hidden, heads * value),
    ]
    if index_heads := c.get("index_n_heads", 0):  # DeepSeek-V3.2: the indexer is not split
        index_dim = c.get("index_head_dim")
        rows += [
            _Linear("indexer.wq_b", index_heads * index_dim, q_rank),
            _Linear("indexer.wk", index_dim, hidden),
        ]
    return rows


def _mlp(c: _Config, layer: str, intermediate: int) -> list[_Linear]:
    hidden = c.get("hidden_size")
    own = c.split(f"the intermediate size of {layer}", intermediate, c.tp)
    return [_Linear(f"{layer}.gate_up_proj", 2 * own, hidden), _Linear(f"{layer}.down_proj", hidden, own)]


def _experts(c: _Config, count: str, intermediate: str) -> _Experts:
    return _Experts(c.get(count), c.get("num_experts_per_tok"), c.get(intermediate))


def _first_layers_and_shared_expert(c: _Config) -> list[_Linear]:
    rows = []
    if c.get("first_k_dense_replace", 0):
        rows += _mlp(c, "mlp", c.get("intermediate_size"))
    if shared := c.get("n_shared_experts", 0):
        rows += _mlp(c, "shared_experts", shared * c.get("moe_intermediate_size"))
    return rows


# ---- models --------------------------------------------------------------------------------------


def _deepseek(c: _Config) -> tuple[list[_Linear], _Experts | None]:
    linear = _latent_attention(c) + _first_layers_and_shared_expert(c)
    return linear, _experts(c, "n_routed_experts", "moe_intermediate_size")


def _qwen3_moe(c: _Config) -> tuple[list[_Linear], _Experts | None]:
    linear = _grouped_query_attention(c)
    if c.get("decoder_sparse_step", 1) > 1 or c._values.get("mlp_only_layers"):
        linear += _mlp(c, "mlp", c.get("intermediate_size"))
    return linear, _experts(c, "num_experts", "moe_intermediate_size")


def _glm4_moe(c: _Config) -> tuple[list[_Linear], _Experts | None]:
    linear = _grouped_query_attention(c) + _first_layers_and_shared_expert(c)
    return linear, _experts(c, "n_routed_experts", "moe_intermediate_size")


def _only_experts(c: _Config) -> tuple[list[_Linear], _Experts | None]:
    return _grouped_query_attention(c), _experts(c, "num_local_experts", "intermediate_size")


MODEL_TYPES: dict[str, Callable[[_Config], tuple[list[_Linear], _Experts | None]]] = {
    "deepseek_v3": _deepseek,  # R1 too
    "deepseek_v32": _deepseek,
    "kimi_k2": _deepseek,
    "qwen3_moe": _qwen3_moe,
    "glm4_moe": _glm4_moe,
    "minimax_m2": _only_experts,
    "gpt_oss": _only_experts,
}
