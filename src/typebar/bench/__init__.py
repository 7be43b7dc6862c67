"""Measuring programs: users by the thousand, quality against transformers, speed and memory against other engines.

`typebar bench soak`, and modules to run: `python -m typebar.bench.quality`, `….compare`, `….concurrent`, `….humaneval`.
They need the `bench` extra.
"""
