"""The callbacks for Lightning and Hugging Face, in real training loops of theirs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIGHTNING = """
import lightning, torch
from trackwalker.progress import lightning as reports

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.layer(batch[0]).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(80, 4)), batch_size=2)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
lightning.Trainer(max_epochs=1, callbacks=[reports()], accelerator="cpu", **quiet).fit(Model(), data)
"""
HUGGING_FACE = """
import sys, torch
from transformers import Trainer, TrainingArguments
from trackwalker.progress import hugging_face

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x=None, labels=None):
        out = self.layer(x).squeeze(-1)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}

data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(80)]
how = dict(max_steps=40, logging_steps=10, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True)
arguments = TrainingArguments(output_dir=sys.argv[1], per_device_train_batch_size=2, **how)
Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[hugging_face()]).train()
"""


@pytest.mark.long(reason="Lightning, transformers and PyTorch are not among the packages of the tests")
@pytest.mark.parametrize(("library", "script"), [("lightning", LIGHTNING), ("transformers", HUGGING_FACE)])
def test_every_step_is_reported_once(library: str, script: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install torch {library}")
    (tmp_path / "train.py").write_text(script)
    told = tmp_path / "told.jsonl"
    env = {**os.environ, "TRACKWALKER_PROGRESS": str(told)}
    subprocess.run(
        [sys.executable, tmp_path / "train.py", tmp_path / "out"], env=env, check=True, capture_output=True, timeout=300
    )
    steps = [json.loads(line) for line in told.read_text().splitlines()]
    assert [s["step"] for s in steps] == list(range(1, 41))
    assert all("loss" in s for s in (steps if library == "lightning" else steps[9::10]))
