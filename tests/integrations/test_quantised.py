"""LoRA over plain and over quantised weights, 8-bit optimizers, and quantised tensors that are refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.errors import ArgumentError, CaptureError, OptimizerError
from tests import torchvision_shim
from tests.integrations.test_transformers import assert_same, outcome

torchvision_shim.install()
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
from lowtide.integrations.transformers import LowtideCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


def base() -> Any:
    """A Llama of two layers, wide enough that activations outweigh adapters."""
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=128, max_position_embeddings=64, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.loss_type = "ForCausalLM"
    return model


def quantised(folder: Path) -> Any:
    """The same with its linear layers in NF4, ready for adapters."""
    base().save_pretrained(folder)
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    model = transformers.LlamaForCausalLM.from_pretrained(folder, quantization_config=config, device_map={"": "cpu"})
    model.loss_type = "ForCausalLM"
    return peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def without_repacking(model: Any) -> Any:
    """Keeps an evaluation from repacking the weights, after which the backward of bitsandbytes loses gradients."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def adapted(model: Any) -> Any:
    """With adapters that drop some of their input."""
    transformers.set_seed(0)
    config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


def trained(model: Any, folder: Path, *callbacks: Any) -> Any:
    """Accumulated gradients and an evaluation; returns the trainer."""
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=8, gradient_accumulation_steps=2, eval_strategy="steps",
        eval_steps=1, save_strategy="no", logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True, seed=2,
    )  # fmt: skip
    tokens = torch.randint(0, 128, (40, 64), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows[:32], eval_dataset=rows[32:], callbacks=[*callbacks]
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("kind", [pytest.param("LoRA", marks=pytest.mark.breadth), "QLoRA"])
def test_adapters_train_as_in_plain_pytorch_and_as_predicted(kind: str, tmp_path: Path) -> None:
    if kind == "QLoRA":
        pytest.importorskip("bitsandbytes")

    def make() -> Any:
        return adapted(base() if kind == "LoRA" else without_repacking(quantised(tmp_path)))

    wanted = outcome(trained(make(), tmp_path))
    callback = LowtideCallback("80% of plain")
    trainer = trained(make(), tmp_path, callback)
    assert_same(outcome(trainer), wanted)
    stats = lowtide.memory_stats(trainer.model)
    assert (stats.misplaced_allocations, stats.spills) == (0, 0)
    assert stats.reserved_B <= stats.budget_B
    assert abs(stats.reserved_B - stats.predicted_B) <= 0.01 * stats.predicted_B
    if kind == "QLoRA":
        recipes = [r for r in trainer.model.lowtide.plan.record.graph.recipes if r.op.startswith("bitsandbytes.")]
        assert {r.op for r in recipes} >= {"bitsandbytes.gemm_4bit.default", "bitsandbytes.dequantize_4bit.default"}
        assert all(r.time_s > 0 and r.trace.peak_B > 0 for r in recipes)  # measured like torch's own
    callback.release()


def test_weights_that_an_evaluation_would_repack_are_refused_with_the_remedy(tmp_path: Path) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    if not bitsandbytes.functional.has_avx512bf16():
        pytest.skip("this processor's kernels repack nothing")
    model = quantised(tmp_path)
    lowtide.fit(model, budget="100% of plain")
    with pytest.raises(CaptureError, match="support_avx512bf16_for_cpu = False"), torch.no_grad():
        model.eval()(input_ids=torch.zeros(2, 16, dtype=torch.long))


def test_the_state_of_an_8_bit_optimizer_counts() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")

    def train(inside: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128))
        optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=1e-3)
        if inside:
            lowtide.fit(model, budget="120% of plain", optimizer=optimizer)
        for _ in range(2):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    x = torch.randn(256, 128)
    plain, _ = train(inside=False)
    fitted, optimizer = train(inside=True)
    assert all(torch.equal(a, b) for a, b in zip(fitted.parameters(), plain.parameters(), strict=True))
    states = (t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor))
    held_B = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in states}.values())
    breakdown = lowtide.memory_stats(fitted).breakdown
    assert breakdown is not None
    assert held_B <= breakdown.optimizer_B <= 1.02 * held_B
    assert held_B < 4 * 2 * 128 * 129 * 2  # less than 32 bits for each of two moments


def test_quantised_tensors_of_torchao_are_refused_in_words() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    with pytest.raises(ArgumentError, match="before it is sharded or quantized"):
        lowtide.fit(model, budget="1GiB")


def test_optimizers_of_torchao_are_refused_in_words() -> None:
    optim = pytest.importorskip("torchao.optim")
    model = nn.Linear(64, 64)
    with pytest.raises(OptimizerError, match="leave optimizer= out"):
        lowtide.fit(model, budget="1GiB", optimizer=optim.AdamW8bit(model.parameters()))
