"""Engines under measurement, each a program that is run in a process (and, where wanted, a Python) of its own.

`python ENGINE.py JOB` takes one JSON object and prints one JSON line; see compare.py and quality.py for the jobs. The
adapters of other engines import nothing of typebar, so that they run where only that engine is installed.
"""
