"""How the weights of a Hugging Face folder are quantized, from `quantization_config` in its `config.json`.

Which layers are quantized the tensors themselves say, so lists of layers left out are not read.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typebar.model.config_keys import Keys, shown

log = logging.getLogger(__name__)

REMEDY = "use the bfloat16 weights of this model with --quant, or a GGUF file of it"
LARGEST_GROUP = 1 << 17
COMPRESSED_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class Quantization:
    """`method`: awq, gptq or compressed-tensors. `group_sizes`: inputs that share a scale, 0 for all of a row.

    Of GPTQ `zeros_less_one`: zero points are stored less one, and `sorts_inputs`: groups are not of neighbours.
    """

    method: str
    bits: int
    group_sizes: frozenset[int]
    zeros_less_one: bool = False
    sorts_inputs: bool = False

    def groups(self, cols: int) -> set[int]:
        """What the inputs of a group may be of a layer of `cols` inputs."""
        return {min(size or cols, cols) for size in self.group_sizes}

    def group(self, cols: int) -> int:
        """The same where all layers have groups of one size."""
        [size] = self.groups(cols)
        return size


def read_quantization(config: Mapping[str, Any], path: Path, beside: Mapping[str, Any] | None) -> Quantization | None:
    """What a parsed `config.json` at `path` states, or the `quantize_config.json` beside it, as old GPTQ folders have.

    None where the weights are not quantized. ModelFileError that names what is missing, out of range or not run.
    """
    keys = Keys(path, config).object("quantization_config") or Keys(path, config).object("compression_config")
    if keys is None and beside:
        keys = Keys(path.with_name("quantize_config.json"), {"quant_method": "gptq", **beside})
    if keys is None:
        return None
    method = keys.values.get("quant_method")
    if not isinstance(method, str) or method not in _READERS:
        raise keys.error(
            f"the weights are quantized with {shown(method)}, which typebar does not run "
            f"(it runs {', '.join(_READERS)}): {REMEDY}"
        )
    return _READERS[method](keys)


def _awq(keys: Keys) -> Quantization:
    layout = keys.values.get("version") or keys.values.get("format") or keys.values.get("checkpoint_format") or "gemm"
    if str(layout).lower() != "gemm":
        raise keys.error(f"the AWQ weights are in the layout {shown(layout)}, typebar runs gemm: {REMEDY}")
    if keys.values.get("zero_point") not in (True, None):
        raise keys.error(f"the AWQ weights have no zero points ({keys.of}zero_point is false): {REMEDY}")
    return Quantization("awq", _bits(keys, ("bits", "w_bit"), (4,)), _group_size(keys, ("group_size", "q_group_size")))


def _gptq(keys: Keys) -> Quantization:
    layout = keys.values.get("checkpoint_format") or keys.values.get("format") or "gptq"
    if layout not in ("gptq", "gptq_v2") or keys.values.get("is_marlin_format"):
        layout = layout if layout not in ("gptq", "gptq_v2") else "marlin"
        raise keys.error(f"the GPTQ weights are in the layout {shown(layout)}, typebar runs gptq and gptq_v2: {REMEDY}")
    if keys.values.get("pack_dtype", "int32") not in ("int32", None):
        raise keys.error(f"the GPTQ weights are packed in {shown(keys.values['pack_dtype'])}, not int32: {REMEDY}")
    return Quantization(
        "gptq",
        _bits(keys, ("bits",), (4, 8)),
        _group_size(keys, ("group_size",)),
        zeros_less_one=layout == "gptq",
        sorts_inputs=keys.flag("desc_act"),
    )


def _compressed(keys: Keys) -> Quantization:
    status = keys.values.get("quantization_status") or "compressed"
    if status != "compressed":
        raise keys.error(f"the weights are not compressed ({keys.of}quantization_status = {shown(status)}): {REMEDY}")
    for key, what in (
        ("kv_cache_scheme", "keys and values are quantized"),
        ("transform_config", "the network has transforms"),
    ):
        if keys.values.get(key):
            raise keys.error(f"{what} ({keys.of}{key}), which typebar lacks: {REMEDY}")
    sparsity = keys.object("sparsity_config")
    if sparsity and sparsity.values.get("format", "dense") != "dense":
        raise keys.error(f"the weights are sparse ({shown(sparsity.values['format'])}), which typebar lacks: {REMEDY}")
    groups = keys.object("config_groups")
    if groups is None:
        raise keys.error(f"{keys.of + 'config_groups'!r} is missing: download the model again")
    schemes = [_scheme(scheme, keys.values.get("format")) for name in groups.values if (scheme := groups.object(name))]
    if not schemes:
        raise keys.error(f"{keys.of + 'config_groups'!r} names no weights: {REMEDY}")
    return Quantization("compressed-tensors", max(bits for bits, _ in schemes), frozenset(size for _, size in schemes))


def _scheme(scheme: Keys, default_format: object) -> tuple[int, int]:
    """Bits and group size of the weights of a config group."""
    layout = scheme.values.get("format") or default_format
    if layout not in COMPRESSED_FORMATS:
        runs = " and ".join(COMPRESSED_FORMATS[:2])
        raise scheme.error(f"the weights are in the format {shown(layout)}, typebar runs {runs}: {REMEDY}")
    weights = scheme.object("weights")
    if weights is None:
        raise scheme.error(f"{scheme.of + 'weights'!r} is missing: {REMEDY}")
    if weights.values.get("type", "int") != "int":
        raise weights.error(f"the weights are of type {shown(weights.values['type'])}, typebar runs int: {REMEDY}")
    if scheme.values.get("output_activations"):
        raise scheme.error(f"outputs are quantized ({scheme.of}output_activations), which typebar lacks: {REMEDY}")
    inputs = scheme.object("input_activations")
    if inputs and not inputs.values.get("dynamic"):
        log.info("%s: fixed scales of inputs are left alone, each 32 values get their own", scheme.path)
    strategy = weights.values.get("strategy") or ("group" if weights.values.get("group_size") else "channel")
    bits = _bits(weights, ("num_bits",), (4, 8))
    match strategy:
        case "group":
            return bits, weights.count("group_size", LARGEST_GROUP)
        case "channel" | "tensor":
            return bits, 0
    raise weights.error(f"scales are shared by {shown(strategy)}, typebar runs group, channel and tensor: {REMEDY}")


_READERS = {"awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed}


def _bits(keys: Keys, names: tuple[str, ...], run: tuple[int, ...]) -> int:
    bits = keys.count(_present(keys, names), 64)
    if bits not in run:
        raise keys.error(f"the weights have {bits} bits, typebar runs {' and '.join(map(str, run))} here: {REMEDY}")
    return bits


def _group_size(keys: Keys, names: tuple[str, ...]) -> frozenset[int]:
    name = _present(keys, names)
    return frozenset({0 if keys.values.get(name) == -1 else keys.count(name, LARGEST_GROUP)})


def _present(keys: Keys, names: tuple[str, ...]) -> str:
    """The first of these keys that is there, the first of all where none is."""
    return next((name for name in names if keys.values.get(name) is not None), names[0])
