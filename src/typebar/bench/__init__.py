"""Measuring programs: users by the thousand, quality against transformers, speed and memory against other engines.

`typebar bench`, and modules to run: `python -m typebar.bench.quality`, `….concurrent`.
They need the `bench` extra.
"""
