"""A tiny Llama for vLLM: no weights (vLLM makes them up), a tokenizer of single bytes."""

import json
from pathlib import Path
from typing import Any

VOCABULARY = 1000
WIDTH = 64
END = 1  # </s>


def write_model(folder: Path, vocabulary: int = VOCABULARY, *, positions: int = 512) -> Path:
    """Write configuration and tokenizer; returns the folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = {name: at for at, name in enumerate(["<s>", "</s>", "<unk>", *bytes_])}
    tokenizer = Tokenizer(models.BPE(vocab=names, merges=[], unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast  # untyped
    fast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)  # noqa: S106
    (folder / "config.json").write_text(json.dumps(_configuration(vocabulary, positions)))
    return folder


def _configuration(vocabulary: int, positions: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": END,
        "torch_dtype": "float32",
    }
