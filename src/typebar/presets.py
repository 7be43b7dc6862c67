"""Settings for a purpose: what `typebar serve --preset NAME` sets below flags, environment and file."""

from dataclasses import dataclass
from typing import Any

from typebar.config import CHAT_SAMPLING

DEFAULT_PRESET = "chat"


@dataclass(frozen=True, slots=True)
class Preset:
    """A purpose and what it sets: fields of EngineConfig, ServerSettings and SamplingParams by name."""

    purpose: str
    values: dict[str, Any]

    def flags(self) -> list[str]:
        """The settings as flags, such as "--temperature 0"."""
        return [_flag(name, value) for name, value in self.values.items()]


PRESETS = {
    "chat": Preset("Conversation, sampled as Qwen's authors advise. The default.", CHAT_SAMPLING),
    "qa": Preset(
        "Short questions: the most likely answer, and its first token as soon as possible beside running answers.",
        {"temperature": 0.0, "repetition_penalty": 1.0, "step_ms": 120.0},
    ),
    "code": Preset(
        "Program text: close to the most likely, and names may be repeated without a penalty.",
        {"temperature": 0.3, "top_k": 10, "repetition_penalty": 1.0},
    ),
    "edge": Preset(
        "A small machine: least memory, some processor left to others; 4-bit weights cost some quality.",
        CHAT_SAMPLING
        | {"default_max_model_len": 1024, "threads": 2, "quantization": "q4", "max_num_seqs": 2, "max_queue": 16},
    ),
    "throughput": Preset(
        "Many requests: more of them at the same time and in the queue, each a little slower.",
        CHAT_SAMPLING | {"max_num_seqs": 32, "max_queue": 512, "step_ms": 200.0},
    ),
    "long": Preset(
        "Long documents: the model's whole context, and few at the same time.",
        CHAT_SAMPLING | {"default_max_model_len": 32768, "max_num_seqs": 4},
    ),
}


def listing() -> str:
    """Every preset with its purpose and its flags, for a terminal."""
    return "\n".join(
        f"{name}\n    {preset.purpose}\n    {', '.join(preset.flags())}" for name, preset in PRESETS.items()
    )


def _flag(name: str, value: object) -> str:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    if name == "default_max_model_len":
        return f"--max-model-len {shown} or what model and memory allow"
    return f"--{name.replace('_', '-')} {shown}"
