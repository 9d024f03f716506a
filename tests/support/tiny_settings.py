"""Settings of the tiny trainer for tests that need a run which goes on, and not a run that computes.

The trainer's default model takes all of the machine's processors; two such runs side by side, and every wait in every
other test doubles. A run made of these settings steps about eight times a second and sleeps most of the time.
"""

from __future__ import annotations

# A model that compiles in a second; a batch every 0.12 s, so that what a step costs is a sleep.
SMALL = (
    "base_num_decoder_layers=1",
    "base_emb_dim=32",
    "base_num_query_heads=2",
    "base_mlp_dim=64",
    "max_target_length=32",
)
PACED = (*SMALL, "data_seconds=0.12")
# Beside a recorded run whose trainer writes event files the recorder starts a TensorBoard: as much CPU time as a rank.
QUIET = (*PACED, "enable_tensorboard=false")


def as_mapping(settings: tuple[str, ...]) -> dict[str, str]:
    """The same as the `key: value` pairs that a plan takes."""
    return dict(word.split("=", 1) for word in settings)
