"""A GGUF file of one block type, by llama.cpp's own quantizer, as its `llama-quantize --pure` makes them.

The quantizer is in xllamacpp's library; the file around the blocks is read and written with the gguf package. It is
held in memory until it is written.
"""

import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FILE_TYPES = {"Q4_0": 2, "IQ4_NL": 25}  # llama_ftype, which tells people what a file is
ROWS = 128  # that a thread takes at a time


def write(source: str, form: str, folder: str) -> None:
    """Write `folder`/model.gguf. Vectors, and rows that are no whole blocks, stay as they are."""
    try:
        import gguf
    except ImportError:
        sys.exit(f"gguf is missing, by which the file is written: {sys.executable} -m pip install gguf")
    reader = gguf.GGUFReader(source)
    if "split.count" in reader.fields and reader.fields["split.count"].contents() > 1:
        sys.exit(f"{source} is one of several files of a model: join them first, by llama-gguf-split --merge")
    writer = gguf.GGUFWriter(Path(folder) / "model.gguf", arch=reader.fields["general.architecture"].contents())
    _copy_metadata(reader, writer)
    writer.add_file_type(FILE_TYPES[form])
    kind = gguf.GGMLQuantizationType[form]
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    library = _library()
    for tensor in reader.tensors:
        if len(tensor.shape) == 2 and tensor.shape[0] % block == 0:
            writer.add_tensor(tensor.name, _quantized(library, tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(reader: Any, writer: Any) -> None:
    """All but what the writer says itself."""
    from gguf import GGUFValueType

    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            kind, *_, last = [*field.types, None] if len(field.types) == 1 else field.types
            writer.add_key_value(field.name, field.contents(), kind, last if kind == GGUFValueType.ARRAY else None)


def _library() -> ctypes.CDLL:
    import xllamacpp

    try:
        library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
        library.ggml_quantize_chunk.restype = ctypes.c_size_t
    except AttributeError:
        sys.exit("this build of xllamacpp shows no ggml_quantize_chunk: pip install xllamacpp==2026.10.11549")
    return library


def _quantized(library: ctypes.CDLL, tensor: Any, kind: Any) -> Any:
    """A matrix as rows of blocks, uint8 [rows, bytes of a row]."""
    import gguf
    import numpy as np

    columns, rows = (int(size) for size in tensor.shape)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    out = np.empty((rows, columns // block * block_bytes), np.uint8)

    def quantize(start: int) -> None:
        weights = np.ascontiguousarray(gguf.dequantize(tensor.data[start : start + ROWS], tensor.tensor_type))
        target = out[start : start + ROWS]
        count, width = (ctypes.c_int64(size) for size in weights.shape)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (weights, target))
        written = library.ggml_quantize_chunk(int(kind), *pointers, ctypes.c_int64(0), count, width, None)
        assert written == target.nbytes

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(quantize, range(0, rows, ROWS)))
    return out
