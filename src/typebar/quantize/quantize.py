"""A model written anew with fewer bits a weight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from typebar.errors import ModelFileError, ParameterError
from typebar.eval.texts import BUILTIN, Text
from typebar.model.checkpoint import Checkpoint, open_checkpoint
from typebar.model.dequantize import Floats
from typebar.model.names import PLAIN_TYPES
from typebar.quantize.block_codes import GROUP, ROUNDINGS
from typebar.quantize.calibration_text import calibration_windows, read_calibration
from typebar.quantize.compensation import compensate
from typebar.quantize.gguf_model import plan_gguf
from typebar.quantize.gguf_writer import file_nbytes, write_gguf
from typebar.quantize.output import check_new, check_space, made_whole
from typebar.quantize.rounding import Grid, Zero
from typebar.quantize.scaling import calibrate
from typebar.quantize.stage import Stage
from typebar.quantize.weights import Weights

METHODS = ("rtn", "awq", "gptq")
BITS = (4, 5, 8)


@dataclass(frozen=True, slots=True)
class Request:
    """What is written where. `symmetric`: zero is the code in the middle, else each group has an offset of its own."""

    to: Path
    bits: int = 4
    symmetric: bool = True
    method: str = "rtn"
    calibration: str = BUILTIN

    @property
    def type_name(self) -> str:
        """The type of the matrices of a GGUF file."""
        zero = Zero.CENTRE if self.symmetric else Zero.ANYWHERE
        return next(name for name, kind in ROUNDINGS.items() if (kind.bits, kind.zero) == (self.bits, zero))

    def check(self) -> None:
        """Before anything is read. ParameterError names what is out of range, TypebarError a path at fault."""
        if self.method not in METHODS:
            raise ParameterError("--method", " or ".join(METHODS), self.method)
        if self.bits not in BITS:
            raise ParameterError("--bits", "4, 5 or 8", self.bits)
        if self.to.suffix != ".gguf":
            raise ParameterError("DST", "the name of a file that ends in .gguf", str(self.to))
        if self.bits == 8 and not self.symmetric:
            raise ParameterError("--asymmetric", "left away with --bits 8: GGUF has no such type", True)
        if self.method == "rtn" and self.calibration != BUILTIN:
            raise ParameterError("--calibration", "left away with --method rtn, which needs no text", self.calibration)
        self.texts()
        check_new(self.to)

    def texts(self) -> list[Text]:
        """What the method is calibrated on."""
        return [] if self.method == "rtn" else read_calibration(self.calibration)


def quantize(source: Path, request: Request, stage: Stage) -> int:
    """Write the model at `source`, a GGUF file or a Hugging Face folder; returns the bytes written.

    Raises ModelFileError for a model that cannot be read, TypebarError where there is no room for it.
    """
    request.check()
    texts = request.texts()
    checkpoint = open_checkpoint(source)
    if checkpoint.path.is_dir() and any(tensor.type not in PLAIN_TYPES for tensor in checkpoint.tensors.values()):
        raise ModelFileError(f"{checkpoint.path}: quantized already: give the folder with its float weights")
    if checkpoint.spec.architecture == "gemma3" and (texts or checkpoint.path.is_dir()):
        raise ModelFileError(f"{checkpoint.path}: typebar quantizes Gemma 3 from a GGUF file only, by --method rtn")
    entries, tensors = plan_gguf(checkpoint, Weights(checkpoint), request.type_name, {})
    size = file_nbytes(entries, tensors)
    check_space(request.to, size)
    if texts:
        weights, importance = _calibrated(checkpoint, request, texts, stage)
        entries, tensors = plan_gguf(checkpoint, weights, request.type_name, importance)
    with made_whole(request.to) as part, stage(f"writing {request.to.name}", len(tensors)) as done:
        write_gguf(part, entries, tensors, lambda _: done(1))
    return size


def _calibrated(
    checkpoint: Checkpoint, request: Request, texts: list[Text], stage: Stage
) -> tuple[Weights, dict[str, Floats]]:
    """The weights to write, and by name what the squared error at each input of those to be rounded counts."""
    windows = calibration_windows(texts, checkpoint.build_tokenizer())
    rounding = ROUNDINGS[request.type_name]
    grid = Grid(rounding.bits, GROUP, rounding.zero)
    found = calibrate(checkpoint.spec, Weights(checkpoint), windows, grid, stage)
    weights = Weights(checkpoint, found.scales)
    if request.method == "gptq":  # of scaled weights: half the divergence that it leaves without (0.12 and 0.24 nats)
        compensate(checkpoint.spec, weights, windows, grid, stage)
    return weights, found.importance
