import logging
import random
import resource

import pytest
from fuzz_gguf import check, mutate, seeds


@pytest.mark.parametrize("start", range(4))
def test_thousand_damaged_files_give_only_model_file_errors(tmp_path, start, caplog):
    caplog.set_level(logging.ERROR)
    rng = random.Random(start)
    files = seeds()
    assert all(check(seed, tmp_path) for seed in files), "a seed must be a valid file"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted = 0
    for _ in range(1000):
        data = mutate(rng, rng.choice(files))
        try:
            accepted += check(data, tmp_path)
        except Exception as error:
            (tmp_path / "find.gguf").write_bytes(data)
            pytest.fail(f"{type(error).__name__}: {error} for {tmp_path / 'find.gguf'}")
    assert 0 < accepted < 900, "mutations should break most files, but not all"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
