"""Runs the program argv[1] for at most argv[2] seconds of processor time; sandbox.py starts it in a process of its own.

Not as __main__: a demonstration that a model added below its function must not run.
"""

import os
import resource
import runpy
import sys

LIMITS = {
    resource.RLIMIT_AS: 1 << 30,
    resource.RLIMIT_FSIZE: 1 << 20,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_NPROC: 0,  # neither processes nor threads; root may start them all the same
    resource.RLIMIT_CORE: 0,
}

if __name__ == "__main__":
    os.nice(10)
    for kind, value in {resource.RLIMIT_CPU: int(sys.argv[2]), **LIMITS}.items():
        resource.setrlimit(kind, (value, value))
    runpy.run_path(sys.argv[1], run_name="program")
