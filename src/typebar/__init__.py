"""typebar: small language models at typewriter speed on an ordinary CPU."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typebar.engine.params import SamplingParams
    from typebar.engine.structured import StructuredOutputsParams
    from typebar.errors import TypebarError
    from typebar.llm import LLM
    from typebar.outputs import CompletionOutput, RequestOutput

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TypebarError",
    "__version__",
]

# Imported when first used: the engine takes longer to import than the rest together.
_HOMES = {
    "LLM": "typebar.llm",
    "SamplingParams": "typebar.engine.params",
    "StructuredOutputsParams": "typebar.engine.structured",
    "TypebarError": "typebar.errors",
    "CompletionOutput": "typebar.outputs",
    "RequestOutput": "typebar.outputs",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'typebar' has no attribute {name!r}")
