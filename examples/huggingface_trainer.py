"""Train with transformers' own `Trainer` inside a budget, in two ways, and see that nothing else changed.

Run: python examples/huggingface_trainer.py     (needs transformers and accelerate)
"""

import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

import lowtide
from lowtide.integrations.transformers import LowtideCallback

BUDGET = "80% of plain"
Result = tuple[list[float], dict[str, torch.Tensor]]  # what was logged, and the weights at the end


def make_model() -> GPT2LMHeadModel:
    """A small GPT-2 with dropout."""
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=64, vocab_size=128, n_positions=64, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    set_seed(0)
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # its own default; unset, it warns at the first loss, and the graph breaks there
    return model


def make_data(count: int) -> list[dict[str, torch.Tensor]]:
    """Sequences of random tokens."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 128, (count, 64), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def make_trainer(model: GPT2LMHeadModel, folder: Path, *callbacks: TrainerCallback) -> Trainer:
    """An ordinary trainer: it accumulates gradients, clips them, evaluates, and saves as it goes."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=2,
    )
    return Trainer(model, arguments, train_dataset=make_data(32), eval_dataset=make_data(8), callbacks=[*callbacks])


def results(trainer: Trainer) -> Result:
    """Every loss that was logged, and the weights."""
    history = trainer.state.log_history
    losses = [entry[name] for entry in history for name in ("loss", "eval_loss") if name in entry]
    return losses, {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def plain(folder: Path) -> Result:
    """Without lowtide."""
    trainer = make_trainer(make_model(), folder)
    trainer.train()
    return results(trainer)


def fitted(folder: Path) -> Result:
    """By a callback: the trainer's own optimizer and its state lie inside the budget too."""
    callback = LowtideCallback(BUDGET)
    trainer = make_trainer(make_model(), folder, callback)
    trainer.train()
    print("LowtideCallback:", trainer.model.lowtide.plan)
    print("LowtideCallback:", lowtide.memory_stats(trainer.model))
    callback.release()
    return results(trainer)


def compiled(folder: Path) -> Result:
    """`model.compile` in torch's own words; here it resumes from the checkpoint that `fitted` saved half way."""
    model = make_model()
    model.compile(backend="lowtide", options={"budget": BUDGET})
    trainer = make_trainer(model, folder)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-1"))
    print("model.compile:", lowtide.memory_stats())
    return results(trainer)


def check(name: str, found: Result, wanted: Result) -> None:
    """Compares every loss and every weight, bit by bit."""
    assert found[0] == wanted[0], f"{name}: {found[0]} is not {wanted[0]}"
    assert found[1].keys() == wanted[1].keys()
    assert all(torch.equal(found[1][key], wanted[1][key]) for key in wanted[1]), name
    print(f"{name}: {len(found[0])} losses and {len(found[1])} tensors equal to plain training")


with tempfile.TemporaryDirectory() as home:
    expected = plain(Path(home) / "plain")
    check("LowtideCallback", fitted(Path(home) / "inside"), expected)
    check("model.compile", compiled(Path(home) / "inside"), expected)

    saved = GPT2LMHeadModel.from_pretrained(Path(home) / "inside" / "checkpoint-2")
    assert all(torch.equal(tensor, expected[1][key]) for key, tensor in saved.state_dict().items())
    print("the checkpoint that training inside the budget saved is an ordinary one")
