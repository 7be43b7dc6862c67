"""llama.cpp's own HTTP server with as many slots as wanted; it ends with SIGTERM.

Job: `model` (path), `threads`, `slots`, `context` (tokens of each slot), `port`.
"""

import json
import signal
import sys


def main() -> None:
    import xllamacpp

    job = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_parallel = job["slots"]
    params.n_ctx = job["slots"] * job["context"]
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    params.cache_ram_mib = 0
    params.fit_params = False
    params.warmup = True
    params.verbosity = 0
    params.port = job["port"]
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # before the server starts its threads
    main()
