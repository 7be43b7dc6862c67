"""Measuring programs: quality against transformers, speed and memory against other engines, HumanEval.

Each is a module to run: `python -m typebar.bench.quality`, `….compare`, `….humaneval`. They need the `bench` extra.
"""
