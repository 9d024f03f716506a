"""A package in the tiny trainer's place: whatever starts the trainer by its module starts this program instead.

For tests of what starts, follows and adopts runs: a rank is there in milliseconds, where one with JAX takes seconds.
"""

from __future__ import annotations

from pathlib import Path

# As MaxText says steps, ten a second; speeds differ a little, as real ones do.
STEPS = """
import time
print("Config param steps: 16", flush=True)
for step in range(16):
    tokens = 1000.0 + step % 3
    said = f"completed step: {step}, seconds: 0.100, TFLOP/s/device: 1.0, Tokens/s/device: {tokens}, loss: 1.0"
    print(said, flush=True)
    time.sleep(0.1)
"""


def put_stand_in(root: Path, program: str = STEPS) -> Path:
    """Write the package; returns the folder that a rank's PYTHONPATH has to name (`_env_PYTHONPATH=…`)."""
    trainer = root / "trackwalker" / "trainers" / "tiny"
    trainer.mkdir(parents=True)
    for folder in (trainer, trainer.parent, trainer.parent.parent):
        (folder / "__init__.py").touch()
    (trainer / "__main__.py").write_text(program + "\n")
    return root
