"""Networks of transformers, with their own losses, from small configurations."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.networks import Network, gpt2
from tests.zoo.inputs import Batches, pixels, sounds, tokens

_WORDS: dict[str, Any] = {"vocab_size": 97, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_TEXT: dict[str, Any] = {
    **_WORDS, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 32,
}  # fmt: skip
_IMAGE: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_labels": 7}


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**_TEXT))


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return ViTForImageClassification(ViTConfig(**_IMAGE, **sizes, hidden_dropout_prob=0.1))


def _swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    sizes = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    return SwinForImageClassification(SwinConfig(**{**_IMAGE, "patch_size": 2}, **sizes, drop_path_rate=0.2))


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=97, **sizes, decoder_start_token_id=0, pad_token_id=0, use_cache=False)
    )


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_TEXT, num_key_value_heads=2, use_cache=False))


def _mamba() -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    sizes = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 1}
    return MambaForCausalLM(MambaConfig(**_WORDS, **sizes, use_cache=False))


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    return MixtralForCausalLM(MixtralConfig(**_TEXT, **experts, num_key_value_heads=2, use_cache=False))


def _opt() -> nn.Module:
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return OPTForCausalLM(OPTConfig(**_WORDS, **sizes, max_position_embeddings=32, layerdrop=0.0, use_cache=False))


def _distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return DistilBertForMaskedLM(
        DistilBertConfig(vocab_size=97, dim=32, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=32)
    )


def _wav2vec2() -> nn.Module:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    speech = {"conv_dim": [16, 16, 16], "conv_kernel": [10, 3, 3], "conv_stride": [5, 2, 2]}
    speech |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3}
    return Wav2Vec2ForCTC(
        Wav2Vec2Config(vocab_size=12, **sizes, **speech, layerdrop=0.0, mask_time_prob=0.0, pad_token_id=0)
    )


def _mamba2() -> nn.Module:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    sizes = {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "head_dim": 16, "num_heads": 4, "n_groups": 2}
    return Mamba2ForCausalLM(Mamba2Config(**_WORDS, **sizes, chunk_size=8, use_cache=False))


def _network(name: str, make: Any, batches: Batches) -> Network:
    return Network(name, make, lambda m, b: m(**b), batches)


NETWORKS = (
    _network("gpt2-default-loss", lambda: gpt2(1, names_loss=False), tokens()),
    _network("gpt2-all-attended", gpt2, tokens(masked=0)),
    _network("bert", _bert, tokens()),
    _network("vit", _vit, pixels()),
    _network("swin", _swin, pixels()),
    _network("t5", _t5, tokens()),
    _network("llama", _llama, tokens()),
    _network("llama-padded", _llama, tokens(masked=5)),
    _network("mamba", _mamba, tokens(length=8)),
    _network("mixtral", _mixtral, tokens()),
    # Chosen after the code was written.
    _network("opt", _opt, tokens()),
    _network("distilbert", _distilbert, tokens()),
    _network("wav2vec2", _wav2vec2, sounds()),
    _network("mamba2", _mamba2, tokens()),
)
