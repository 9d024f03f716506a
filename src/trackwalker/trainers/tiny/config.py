"""The trainer's configuration: a YAML file, then key=value overrides; MaxText's names where MaxText has one.

Standard library and PyYAML only, so that a mistake is answered before JAX is even imported.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml


class ConfigError(Exception):
    """The configuration is wrong; the message is one line for the user."""


def _number(default: Any, low: float) -> Any:
    return dataclasses.field(default=default, metadata={"low": low})


def _choice(default: str, *choices: str) -> Any:
    return dataclasses.field(default=default, metadata={"choices": choices})


@dataclasses.dataclass(frozen=True)
class Config:
    """Every key the trainer knows, with its default; a numeric field carries its lower bound as metadata."""

    run_name: str = "tiny"
    base_output_directory: str = "outputs"
    steps: int = _number(200, 1)
    log_period: int = _number(10, 1)  # TensorBoard is flushed every so many steps; the log has every step

    # Model
    vocab_size: int = _number(512, 8)
    base_emb_dim: int = _number(128, 2)
    base_num_decoder_layers: int = _number(2, 1)
    base_num_query_heads: int = _number(4, 1)
    base_mlp_dim: int = _number(384, 1)
    num_experts: int = _number(1, 1)
    num_experts_per_tok: int = _number(1, 1)
    load_balance_loss_weight: float = _number(0.01, 0)
    dtype: str = _choice("float32", "float32", "bfloat16")

    # Optimisation
    per_device_batch_size: int = _number(4, 1)
    max_target_length: int = _number(128, 2)
    learning_rate: float = _number(3e-3, 0)
    warmup_steps: int = _number(10, 0)
    gradient_clipping_threshold: float = _number(1.0, 0)  # 0: no clipping
    init_seed: int = _number(0, 0)
    abort_on_nan_loss: bool = False

    # Data
    dataset_type: str = _choice("synthetic", "synthetic")
    data_shuffle_seed: int = _number(0, 0)
    data_seconds: float = _number(0.0, 0)  # what the pipeline needs for one batch
    data_rows_cached: int = _number(0, 0)  # rows of a batch that cost the reader nothing more; 0: all of them
    data_miss_seconds: float = _number(0.0, 0)  # what each further row costs: a batch can be too large to be fast
    data_row_mb: float = _number(0.0, 0)  # what the reader keeps in memory for each row of a batch
    data_slow_from_step: int = _number(-1, -1)  # -1: the pipeline never becomes slow
    data_slow_seconds: float = _number(0.0, 0)
    data_slow_rank: int = _number(-1, -1)  # -1: on every rank
    nan_at_step: int = _number(-1, -1)  # -1: never
    data_fails_at_step: int = _number(-1, -1)  # -1: every batch can be read
    data_fails_rank: int = _number(-1, -1)  # -1: on every rank

    # Checkpoints
    enable_checkpointing: bool = True
    checkpoint_period: int = _number(50, 1)
    async_checkpointing: bool = False
    checkpoint_write_seconds: float = _number(0.0, 0)  # a save takes at least this long: slow storage
    checkpoint_slow_from_step: int = _number(0, 0)  # only from this step on

    # Reporting
    enable_tensorboard: bool = True
    hardware_peak_tflops: float = _number(0.0, 0)  # 0: unknown, so no MFU

    # Start-up
    jax_distributed_initialization_timeout: int = _number(300, 1)
    jax_distributed_heartbeat_timeout_seconds: int = _number(100, 1)

    @property
    def run_directory(self) -> Path:
        """Where this run keeps its checkpoints and TensorBoard files, the same again after a restart."""
        return Path(self.base_output_directory) / self.run_name

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.base_emb_dim // self.base_num_query_heads

    def lines(self) -> list[str]:
        """The `Config param` lines that MaxText prints at start, sorted by key."""
        values = dataclasses.asdict(self)
        return [f"Config param {key}: {values[key]}" for key in sorted(values)]


_FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def load(arguments: list[str]) -> Config:
    """The configuration of `<config.yml> key=value …`; raises ConfigError with one line that says what to mend."""
    if not arguments or "=" in arguments[0]:
        raise ConfigError("no config file given; usage: python -m trackwalker.trainers.tiny <config.yml> key=value …")
    values: dict[str, Any] = dict(_read_yaml(Path(arguments[0])))
    values.update(_overrides(arguments[1:]))
    config = Config(**{key: _convert(key, value) for key, value in values.items()})
    _check_combinations(config)
    return config


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' is not valid YAML: {' '.join(str(error).split())}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"'{path}' must hold key: value pairs, not a {type(loaded).__name__}")
    return {str(key): value for key, value in loaded.items() if key != "trackwalker"}  # the launcher's own block


def _overrides(arguments: Iterable[str]) -> dict[str, str]:
    found = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ConfigError(f"expected key=value, got '{argument}'")
        found[key] = value
    return found


def _convert(key: str, value: Any) -> Any:
    field = _FIELDS.get(key)
    if field is None:
        close = difflib.get_close_matches(key, _FIELDS, n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise ConfigError(f"unknown key '{key}'{hint}")
    try:
        converted = _CONVERTERS[str(field.type)](value)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"key '{key}' must be {_NAMES[str(field.type)]}, got '{value}'") from None
    low = field.metadata.get("low")
    if low is not None and converted < low:
        raise ConfigError(f"key '{key}' must be at least {low}, got '{value}'")
    choices = field.metadata.get("choices")
    if choices and converted not in choices:
        raise ConfigError(f"key '{key}' must be {' or '.join(choices)}, got '{value}'")
    return converted


def _check_combinations(config: Config) -> None:
    if not config.run_name:
        raise ConfigError("key 'run_name' must not be empty")
    if config.base_emb_dim % config.base_num_query_heads or config.head_dim % 2:
        raise ConfigError(
            f"key 'base_emb_dim' ({config.base_emb_dim}) must split into an even width for each of"
            f" base_num_query_heads={config.base_num_query_heads}"
        )
    if config.num_experts_per_tok > config.num_experts:
        raise ConfigError(
            f"key 'num_experts_per_tok' ({config.num_experts_per_tok}) must not exceed num_experts={config.num_experts}"
        )


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    try:
        return int(value) if not isinstance(value, float) else _whole(value)
    except ValueError:
        return _whole(float(value))  # '1e3' and '4.0' are whole numbers too


def _whole(value: float) -> int:
    if not value.is_integer():
        raise ValueError
    return int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    converted = float(value)  # YAML 1.1 reads 1e-3 as text, so text is converted as well
    if not math.isfinite(converted):
        raise ValueError
    return converted


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    try:
        return known[str(value).strip().lower()]
    except KeyError:
        raise ValueError from None


def _to_str(value: Any) -> str:
    if value is None or isinstance(value, (dict, list)):
        raise TypeError
    return str(value)


# By the annotation's text: with postponed evaluation that is what dataclasses hold.
_CONVERTERS: dict[str, Any] = {"int": _to_int, "float": _to_float, "bool": _to_bool, "str": _to_str}
_NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
