"""A model written anew with fewer bits a weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from typebar.errors import ModelFileError, ParameterError
from typebar.eval.texts import BUILTIN, Text
from typebar.model.checkpoint import Checkpoint, open_checkpoint
from typebar.model.names import PLAIN_TYPES
from typebar.quantize import folder_model, gguf_writer, safetensors_writer
from typebar.quantize.block_codes import GROUP, ROUNDINGS
from typebar.quantize.calibration_text import calibration_windows, read_calibration, sampled_windows
from typebar.quantize.compensation import compensate
from typebar.quantize.folder_texts import folder_texts
from typebar.quantize.gguf_model import is_within, plan_gguf, uniform_types
from typebar.quantize.mixed import Mixed, Mixer, least_bits
from typebar.quantize.output import check_new, check_space, made_whole
from typebar.quantize.rounded_tensor import Source
from typebar.quantize.rounding import Grid, Zero
from typebar.quantize.scaling import calibrate
from typebar.quantize.sensitivity import SMALLEST, measure_parts
from typebar.quantize.stage import Stage
from typebar.quantize.weights import Weights

METHODS = ("rtn", "awq", "gptq")
BITS = (4, 5, 8)
GROUPS = (32, 64, 128)
BITS_A_WEIGHT = (4.5, 8.5)
OTHER_FILES = (".bin", ".safetensors", ".pt", ".pth", ".onnx", ".json")


@dataclass(frozen=True, slots=True)
class Request:
    """What is written where: a GGUF file, or a folder in the layout of AWQ.

    `symmetric`: zero is the code in the middle, else each group of a GGUF file has an offset of its own. `group`: of a
    folder the inputs that share a scale, 128 where it is None. With `target_bits`, a weight over all matrices, or
    `target_kl`, in nats, the types of a GGUF file's matrices are chosen one by one.
    """

    to: Path
    bits: int = 4
    symmetric: bool = True
    method: str = "rtn"
    calibration: str = BUILTIN
    group: int | None = None
    target_bits: float | None = None
    target_kl: float | None = None

    @property
    def is_mixed(self) -> bool:
        return self.target_bits is not None or self.target_kl is not None

    @property
    def is_folder(self) -> bool:
        return self.to.suffix != ".gguf"

    @property
    def grid(self) -> Grid:
        """What the matrices of the layers are rounded to."""
        if self.is_folder:
            return Grid(4, self.group or 128, Zero.CODE)
        return Grid(self.bits, GROUP, Zero.CENTRE if self.symmetric else Zero.ANYWHERE)

    @property
    def type_name(self) -> str:
        """The type of the matrices of a GGUF file."""
        return next(name for name, kind in ROUNDINGS.items() if kind.grid == self.grid)

    def check(self) -> None:
        """Before anything is read. ParameterError names what is out of range, TypebarError a path at fault."""
        if self.method not in METHODS:
            raise ParameterError("--method", " or ".join(METHODS), self.method)
        if self.bits not in BITS:
            raise ParameterError("--bits", "4, 5 or 8", self.bits)
        if self.method == "rtn" and not self.is_mixed and self.calibration != BUILTIN:
            raise ParameterError("--calibration", "left away with --method rtn, which needs no text", self.calibration)
        if self.is_folder:
            self._check_folder()
        else:
            self._check_gguf()
        if self.is_mixed:
            self._check_target()
        self.texts()
        check_new(self.to)

    def _check_folder(self) -> None:
        if self.to.suffix in OTHER_FILES:
            raise ParameterError("DST", "the name of a file that ends in .gguf, or of a folder", str(self.to))
        if self.bits != 4:
            raise ParameterError("--bits", "4 for a folder, as AWQ has; NAME.gguf takes 5 and 8", self.bits)
        if not self.symmetric:
            raise ParameterError("--asymmetric", "left away for a folder: all groups of AWQ have a zero point", True)
        if self.group not in (None, *GROUPS):
            raise ParameterError("--group", "32, 64 or 128", self.group)

    def _check_gguf(self) -> None:
        if self.group not in (None, GROUP):
            raise ParameterError("--group", "32 for a GGUF file; a folder takes 32, 64 and 128", self.group)
        if self.bits == 8 and not self.symmetric:
            raise ParameterError("--asymmetric", "left away with --bits 8: GGUF has no such type", True)

    def _check_target(self) -> None:
        if self.target_bits is not None and self.target_kl is not None:
            raise ParameterError("--target-kl", "left away with --target-bpw: give one of them", self.target_kl)
        name, target = (
            ("--target-kl", self.target_kl) if self.target_bits is None else ("--target-bpw", self.target_bits)
        )
        if self.is_folder:
            raise ParameterError(name, "left away for a folder, all of whose layers have one form", target)
        if self.bits != 4:
            raise ParameterError("--bits", f"left away with {name}, which chooses from 4 to 8", self.bits)
        if not self.symmetric:
            raise ParameterError("--asymmetric", f"left away with {name}, which chooses types with offsets too", True)
        if self.target_bits is not None and not BITS_A_WEIGHT[0] <= self.target_bits <= BITS_A_WEIGHT[1]:
            raise ParameterError(name, "bits a weight from 4.5 (Q4_0) to 8.5 (Q8_0)", target)
        if self.target_kl is not None and not 0 < self.target_kl < math.inf:
            raise ParameterError(name, "more than 0 nats", target)

    def texts(self) -> list[Text]:
        """What the method is calibrated on."""
        return [] if self.method == "rtn" and not self.is_mixed else read_calibration(self.calibration)


@dataclass(frozen=True, slots=True)
class Written:
    """The bytes written and, of a file of several types, what was chosen."""

    nbytes: int
    mixed: Mixed | None = None


def quantize(source: Path, request: Request, stage: Stage) -> Written:
    """Write the model at `source`, a GGUF file or a Hugging Face folder.

    Raises ModelFileError for a model that cannot be read, TypebarError where there is no room for it.
    """
    request.check()
    texts = request.texts()
    checkpoint = open_checkpoint(source)
    if checkpoint.path.is_dir() and any(tensor.type not in PLAIN_TYPES for tensor in checkpoint.tensors.values()):
        raise ModelFileError(f"{checkpoint.path}: quantized already: give the folder with its float weights")
    if checkpoint.spec.architecture == "gemma3" and (texts or checkpoint.path.is_dir() or request.is_folder):
        raise ModelFileError(
            f"{checkpoint.path}: typebar quantizes Gemma 3 from a GGUF file to a GGUF file only, by --method rtn"
        )
    write = _write_folder if request.is_folder else _write_gguf
    return write(checkpoint, request, texts, stage)


def _write_gguf(checkpoint: Checkpoint, request: Request, texts: list[Text], stage: Stage) -> Written:
    source, mixed = Source(Weights(checkpoint), {}), None
    types = uniform_types(checkpoint, source, SMALLEST if request.is_mixed else request.type_name)
    if request.is_mixed:
        _check_target_here(checkpoint, request)
    check_space(request.to, gguf_writer.file_nbytes(*plan_gguf(checkpoint, source, types)))
    if request.is_mixed:
        source, mixed = _mixed(checkpoint, request, texts, stage)
        types = mixed.types
    elif texts:
        source = _fitted(checkpoint, request, texts, stage)
        types = uniform_types(checkpoint, source, request.type_name)
    entries, tensors = plan_gguf(checkpoint, source, types)
    size = gguf_writer.file_nbytes(entries, tensors)
    check_space(request.to, size)
    with made_whole(request.to) as part, stage(f"writing {request.to.name}", len(tensors)) as done:
        gguf_writer.write_gguf(part, entries, tensors, lambda _: done(1))
    return Written(size, mixed)


def _check_target_here(checkpoint: Checkpoint, request: Request) -> None:
    """ParameterError where no file of several types is as small as asked for."""
    least = least_bits(checkpoint)
    if request.target_bits is not None and request.target_bits < least:
        raise ParameterError("--target-bpw", f"{math.ceil(least * 100) / 100:g} or more here", request.target_bits)


def _mixed(checkpoint: Checkpoint, request: Request, texts: list[Text], stage: Stage) -> tuple[Source, Mixed]:
    tokenizer = checkpoint.build_tokenizer()
    source = Source(Weights(checkpoint), {})
    if request.method != "rtn":
        source = _calibrated(checkpoint, request, texts, stage)
    parts = measure_parts(checkpoint, source, sampled_windows(texts, tokenizer), stage)
    compensated = calibration_windows(texts, tokenizer) if request.method == "gptq" else None
    mixer = Mixer(checkpoint, source, compensated, stage)
    if request.target_bits is not None:
        return source, mixer.within(parts, request.target_bits)
    assert request.target_kl is not None
    return source, mixer.below(parts, request.target_kl)


def _write_folder(checkpoint: Checkpoint, request: Request, texts: list[Text], stage: Stage) -> Written:
    folder_model.check_groups(checkpoint, request.grid.group)
    beside = folder_texts(checkpoint, request.grid.group)
    source = Source(Weights(checkpoint), {})
    tensors = folder_model.plan_folder(checkpoint, source, request.grid)
    size = safetensors_writer.file_nbytes(tensors) + sum(map(len, beside.values()))
    check_space(request.to, size)
    if texts:
        source = _fitted(checkpoint, request, texts, stage)
        tensors = folder_model.plan_folder(checkpoint, source, request.grid)
    with made_whole(request.to) as part, stage(f"writing {request.to.name}", len(tensors)) as done:
        folder_model.write_folder(part, beside, tensors, done)
    return Written(size)


def _calibrated(checkpoint: Checkpoint, request: Request, texts: list[Text], stage: Stage) -> Source:
    windows = calibration_windows(texts, checkpoint.build_tokenizer())
    tensors = {} if request.is_folder else checkpoint.tensors
    stays = {name for name, tensor in tensors.items() if is_within(tensor.type, request.type_name)}
    found = calibrate(checkpoint.spec, Weights(checkpoint), windows, request.grid, stays, stage)
    return Source(Weights(checkpoint, found.scales), found.importance)


def _fitted(checkpoint: Checkpoint, request: Request, texts: list[Text], stage: Stage) -> Source:
    """Scaled and, by gptq, rounded: half the divergence that it leaves without scales (0.12 and 0.24 nats)."""
    source = _calibrated(checkpoint, request, texts, stage)
    if request.method == "gptq":
        windows = calibration_windows(texts, checkpoint.build_tokenizer())
        grids = dict.fromkeys(source.importance, request.grid)
        compensate(checkpoint.spec, source.weights, windows, grids, stage)
    return source
