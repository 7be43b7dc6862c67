"""The linear layers of a quantized Hugging Face folder as matrices of blocks, their inputs in the order of the groups.

GPTQ with desc_act groups inputs that are not neighbours. The weights of such a layer are sorted by group, and its input
is put in the same order: by the native core, which takes one order for q, k and v of a layer, one for o and one for
gate and up; down needs none, because the rows of gate and up are sorted instead.
"""

from collections.abc import Mapping

import numpy as np

from typebar.model import awq, compressed_tensors, gptq
from typebar.model.dequantize import Bytes
from typebar.model.grouped_matrix import GroupedMatrix, Order
from typebar.model.names import expected_tensors, folder_names
from typebar.model.quantization import Quantization
from typebar.model.spec import ModelSpec
from typebar.model.tensor import FileTensor, MadeTensor, Tensor

_READERS = {"awq": awq.awq_layer, "gptq": gptq.gptq_layer, "compressed-tensors": compressed_tensors.compressed_layer}
_PARTS = {"awq": awq.PARTS, "gptq": gptq.PARTS, "compressed-tensors": compressed_tensors.PARTS}
# The native core's name of an order, and the matrices of a block of the network that share it.
_SHARED = {"attn_order": ("q", "k", "v"), "o_order": ("o",), "mlp_order": ("gate", "up")}


def quantized_layers(
    spec: ModelSpec, quantization: Quantization, tensors: Mapping[str, FileTensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a folder, each quantized layer as one of blocks, "….weight"; and the orders of inputs.

    An order goes by its canonical name: a vector of f32 whose value k is the input that stands at column k. Of the data
    only `g_idx` is read. Raises ModelFileError that names the layer at fault.
    """
    names = {canonical: name for name, canonical in folder_names(spec).items()}
    grouped = _grouped(spec, quantization, tensors)
    parts = {f"{matrix.name}.{part}" for matrix in grouped.values() for part in _PARTS[quantization.method]}
    found: dict[str, Tensor] = {name: tensor for name, tensor in tensors.items() if name not in parts}
    orders: dict[str, Tensor] = {}
    for index in range(spec.num_layers):
        for order_name, sharing in _SHARED.items():
            canonicals = {part: f"layers.{index}.{part}" for part in sharing}
            layers = {
                part: grouped.get(canonical)
                for part, canonical in canonicals.items()
                if canonical in grouped or names[canonical] in found
            }
            order = _shared_order(layers)
            if order is not None:
                orders[f"layers.{index}.{order_name}"] = _vector(order_name, order, layers)
            found |= {f"{matrix.name}.weight": matrix.tensor(order) for matrix in layers.values() if matrix}
        if down := grouped.get(f"layers.{index}.down"):
            order = down.order()
            found[f"{down.name}.weight"] = down.tensor(order)
            for name in (names[f"layers.{index}.{part}"] for part in ("gate", "up")):
                if order is not None and name in found:
                    found[name] = _sorted_rows(found[name], order)
    if head := grouped.get("head"):
        if head.order() is not None:
            raise head.error("takes its inputs in another order, which typebar lacks: quantize it without desc_act")
        found[f"{head.name}.weight"] = head.tensor(None)
    return found, orders


def _grouped(
    spec: ModelSpec, quantization: Quantization, tensors: Mapping[str, FileTensor]
) -> dict[str, GroupedMatrix]:
    """The layers that are quantized, by canonical name."""
    shapes = expected_tensors(spec)
    grouped: dict[str, GroupedMatrix] = {}
    for name, canonical in folder_names(spec).items():
        module = name.removesuffix(".weight")
        if name.endswith(("_proj.weight", "lm_head.weight")) and _is_quantized(module, quantization, tensors):
            rows, cols = shapes[canonical]
            matrix = grouped[canonical] = _READERS[quantization.method](module, (rows, cols), tensors, quantization)
            if "weight" not in _PARTS[quantization.method] and name in tensors:
                raise matrix.error("has a 'weight' beside its 'qweight': remove one of them")
    return grouped


def _is_quantized(module: str, quantization: Quantization, tensors: Mapping[str, FileTensor]) -> bool:
    weight = tensors.get(f"{module}.weight")
    return f"{module}.{_PARTS[quantization.method][0]}" in tensors or (weight is not None and weight.type == "I8")


def _shared_order(layers: Mapping[str, GroupedMatrix | None]) -> Order | None:
    """The one order in which the inputs of all these layers are sorted by group, None for that of the model."""
    first = next((matrix for matrix in layers.values() if matrix and matrix.order() is not None), None)
    if first is None:
        return None
    order = first.order()
    if any(matrix is None or matrix.groups(order) is None for matrix in layers.values()):
        raise first.error(
            f"groups its inputs (g_idx) in another way than the others of {', '.join(layers)} beside it, for which "
            "typebar has one order: quantize the model without desc_act, or use a GGUF file of it"
        )
    return order


def _vector(name: str, order: Order, layers: Mapping[str, GroupedMatrix | None]) -> MadeTensor:
    path = next(matrix.path for matrix in layers.values() if matrix)
    data = order.astype("<f4").view(np.uint8)
    return MadeTensor(name, "F32", order.shape, path, data.nbytes, lambda: data)


def _sorted_rows(tensor: Tensor, order: Order) -> MadeTensor:
    def make() -> Bytes:
        return tensor.read().reshape(len(order), -1)[order].reshape(-1)

    return MadeTensor(tensor.name, tensor.type, tensor.shape, tensor.path, tensor.nbytes, make)
