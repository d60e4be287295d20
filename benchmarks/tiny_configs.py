"""A config of some ten thousand weights for each architecture, from the config that it has by default.

Sizes shrink by the names of their fields, in sub-configs too; lists with one entry a layer keep the first
layer of each kind, so that a hybrid stays one. What does not follow from names stands in OWN_WAYS.
"""

from typing import Any

V = 128  # vocabulary
HIDDEN, HEADS, KV_HEADS, HEAD = 64, 4, 2, 16
MOST_LAYERS = 4

_LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_blocks",
    "decoder_layers",
    "encoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
)
_VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input")
_WIDTHS = (
    "hidden_size",
    "d_model",
    "n_embd",
    "n_embed",
    "dim",
    "emb_dim",
    "d_ff",
    "dff",
    "dim_ff",
    "ffn_dim",
    "d_inner",
    "lru_width",
    "embedding_dim",
    "embedding_size",
    "ple_embed_dim",
    "backbone_hidden_size",
    "adapter_in_dim",
    "adapter_input_size",
    "adapter_out_dim",
    "input_embedding_size",
    "output_embedding_size",
    "feed_forward_size",
    "word_embed_proj_dim",
)
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "model_max_length")
_HEAD_COUNTS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "index_n_heads")
_HEAD_WIDTHS = ("head_dim", "kv_channels", "d_head", "dim_head", "rotary_dim", "attention_head_size")
_STATES = ("state_size", "mamba_d_state", "ssm_state_size", "mamba_d_head", "hidden_size_per_layer_input")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_CHOSEN_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
_GROUPS = ("n_group", "topk_group", "num_expert_group")

# A field is at most so large; by its name, or by how its name ends.
_BY_NAME: dict[str, int] = {
    **dict.fromkeys(_VOCABULARIES, V),
    **dict.fromkeys(_WIDTHS + _POSITIONS, HIDDEN),
    **dict.fromkeys(_HEAD_COUNTS, HEADS),
    **dict.fromkeys(_HEAD_WIDTHS + _STATES, HEAD),
    **dict.fromkeys(_EXPERTS, 8),
    **dict.fromkeys(_CHOSEN_EXPERTS, 2),
    **dict.fromkeys(_GROUPS, 1),
    "mamba_d_ssm": 2 * HIDDEN,
    "mamba_n_heads": 8,
}
_BY_ENDING: tuple[tuple[str, int], ...] = (
    ("vocab_size", V),
    ("intermediate_size", HIDDEN),
    ("intermediate_size_mlp", HIDDEN),
    ("ffn_hidden_size", HIDDEN),
    ("ffn_dim", HIDDEN),
    ("attention_hidden_size", HIDDEN),
    ("attention_heads", HEADS),
    ("num_key_value_heads", KV_HEADS),
    ("num_key_heads", HEADS),
    ("num_value_heads", HEADS),
    ("linear_num_heads", HEADS),
    ("head_dim", HEAD),
    ("lora_rank", HEAD),
)

_HYBRID_OF_ZAMBA = ["linear_attention", "hybrid", "linear_attention", "hybrid"]
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MLA_HEAD = 2 * HEAD  # rotated and plain halves
_GEMMA_LAYERS = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
}

# Fields of an architecture that have to fit each other in a way that no name tells.
OWN_WAYS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": V},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": KV_HEADS, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "dory": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
    },
    "dots3_note_text": {"head_dim": _MLA_HEAD},
    "falcon_h1": {"mamba_d_head": HEAD},
    "gemma3n_text": _GEMMA_LAYERS
    | {"intermediate_size": [HIDDEN] * 4, "activation_sparsity_pattern": [0.0] * 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_hidden_layers": 8, "num_layers_per_stack": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8},
    "qwen4_exp_text": {
        "indexer_budget": HEAD,
        "indexer_compress_ratio": 4,
        "indexer_n_heads": HEADS,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD,
        "ngram_vocab_size_base": V,
        "split_ngram_parts": 1,
        "hc_lowrank": HEAD,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xlstm": {"chunk_size": HEAD, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": _HYBRID_OF_ZAMBA,
        "attention_hidden_size": 2 * HIDDEN,
        "attention_head_dim": _MLA_HEAD,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": _HYBRID_OF_ZAMBA,
        "attention_hidden_size": 2 * HIDDEN,
        "attention_head_dim": _MLA_HEAD,
        "hybrid_layer_ids": [1, 3],
        "n_mamba_heads": 8,
        "mamba_headdim": HEAD,
    },
}


def tiny_config(model_type: str) -> Any:
    """Return a small config of `model_type`."""
    from transformers import AutoConfig

    whole = AutoConfig.for_model(model_type)
    return type(whole)(**shrunk(whole.to_dict()))


def config_for(kind: Any, config: Any) -> Any:
    """Return what the model class `kind` is built from: `config`, or the part of it that is the text's."""
    if isinstance(config, kind.config_class):
        return config
    parts = (getattr(config, name, None) for name in config.sub_configs)
    return next((part for part in parts if isinstance(part, kind.config_class)), config)


def shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """Return the same fields with small sizes."""
    layers = next((config[name] for name in _LAYERS if isinstance(config.get(name), int)), None)
    kept = _layers_to_keep(config, layers)
    small = {name: _smaller(str(name), value, layers, kept) for name, value in config.items()}
    small |= {name: size for name, size in _missing(config).items() if config.get(name) is None}
    if config.get("num_key_value_heads") == config.get("num_attention_heads"):
        small |= {"num_key_value_heads": HEADS} if "num_key_value_heads" in config else {}
    if "qk_nope_head_dim" in config and "qk_head_dim" in config:
        small["qk_head_dim"] = _MLA_HEAD
    return small | OWN_WAYS.get(config.get("model_type", ""), {})


def _missing(config: dict[str, Any]) -> dict[str, int]:
    """Return sizes for fields that stand there as None, although the model does not work them out."""
    sizes = {
        "num_key_value_heads": HEADS,
        "head_dim": HEAD,
        "num_experts_per_tok": 2,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
    }
    return {name: size for name, size in sizes.items() if name in config}


def _layers_to_keep(config: dict[str, Any], layers: int | None) -> list[int]:
    """Return the layers that show each kind: [lin, lin, lin, full] -> [0, 3]."""
    if layers is None:
        return [0, 1]
    lists = [value for value in config.values() if isinstance(value, list) and len(value) == layers]
    special = config.get("per_layer_config") or {}
    first: dict[str, int] = {}
    for layer in range(layers):
        kind = repr(([entries[layer] for entries in lists], special.get(layer, special.get(str(layer)))))
        first.setdefault(kind, layer)
    found = sorted(first.values())[:MOST_LAYERS]
    return found if len(found) > 1 else [0, 1]


def _smaller(name: str, value: Any, layers: int | None, kept: list[int]) -> Any:
    if name == "per_layer_config" and value:
        by_layer = {int(layer): shrunk(special) for layer, special in value.items()}
        return {new: by_layer[old] for new, old in enumerate(kept) if old in by_layer}
    if isinstance(value, dict):
        return shrunk(value)
    if isinstance(value, list) and len(value) == layers:
        return [_smaller(name, value[layer], layers, kept) for layer in kept]
    if name.endswith(("token_id", "token_index")):
        return _known_token(name, value)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    return len(kept) if name in _LAYERS else min(value, _at_most(name, value))


def _at_most(name: str, otherwise: int) -> int:
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((size for ending, size in _BY_ENDING if name.endswith(ending)), otherwise)


def _known_token(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_known_token(name, token) for token in value]
    if not isinstance(value, int) or value < V:
        return value
    return 0 if name == "pad_token_id" else V - 1
