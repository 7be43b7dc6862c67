import numpy as np
import pytest

from tiny_model import write_tiny_gguf
from typebar.config import EngineConfig
from typebar.errors import ModelFileError, TypebarError
from typebar.model.gguf import GGUFFile
from typebar.model.load import load_model


def test_settings_take_the_place_of_the_configs(tiny_path):
    config = EngineConfig(max_model_len=256, threads=1)
    model = load_model(tiny_path, config, max_model_len=100)
    assert (model.max_model_len, model.native.threads) == (100, 1)


def test_weight_that_is_not_a_number_is_an_error_that_names_file_and_tensor(tmp_path):
    path = write_tiny_gguf(tmp_path / "m.gguf", types="Q8_0").path
    scale = GGUFFile.open(path).tensors["blk.1.attn_k.weight"].offset
    np.memmap(path, np.uint16, "r+", scale, (1,))[:] = 0x7E00
    with pytest.raises(
        ModelFileError, match=r"m\.gguf: tensor 'layers\.1\.k' has a scale in row 0 that is not a finite"
    ):
        load_model(path, threads=1)


def test_shape_that_the_kernels_lack_is_refused_by_name(tmp_path):
    path = write_tiny_gguf(tmp_path / "m.gguf", num_heads=8, head_dim=8).path
    with pytest.raises(TypebarError, match=r"m\.gguf: head_dim = 8 is outside 16 … 512"):
        load_model(path, threads=1)


@pytest.mark.parametrize("threads", [None, 1])
def test_instruction_set_that_is_not_here_is_refused(tiny_path, monkeypatch, threads):
    with pytest.raises(TypebarError, match=r"isa=mmx: .*usable here: .*scalar"):
        load_model(tiny_path, threads=threads, isa="mmx")
    monkeypatch.setenv("TYPEBAR_ISA", "mmx")
    with pytest.raises(TypebarError, match=r"TYPEBAR_ISA=mmx: .*usable here: .*scalar"):
        load_model(tiny_path, threads=threads)


def test_kv_memory_beyond_all_bounds_is_cut(tiny_path):
    assert load_model(tiny_path, threads=1, kv_memory=1 << 62).kv_blocks == 1 << 24
