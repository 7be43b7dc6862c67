"""`typebar quantize`: a model with fewer bits a weight, as a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from typebar.cli.stages import stage


def quantize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="As for `typebar run --model`.", show_default=False)],
    to: Annotated[
        Path,
        typer.Argument(
            metavar="DST", help="NAME.gguf: a GGUF file; another name: a folder as AWQ makes it.", show_default=False
        ),
    ],
    bits: Annotated[
        int, typer.Option(help="Of a weight: 4, 5 or 8 in a GGUF file, whose output layer gets 8; 4 in a folder.")
    ] = 4,
    asymmetric: Annotated[
        bool, typer.Option("--asymmetric", help="An offset for each group too, half a bit a weight more.")
    ] = False,
    group: Annotated[
        int | None,
        typer.Option(
            help="Inputs that share a scale: 32, 64 or 128 in a folder (128 if not given), 32 in a GGUF file."
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="rtn: to the nearest code; awq: inputs that matter more finely; gptq: also making up for errors."
        ),
    ] = "rtn",
    target_bpw: Annotated[
        float | None,
        typer.Option(
            help="Types matrix by matrix instead of --bits, by measured effect: so many bits a weight in all, from 4.5."
        ),
    ] = None,
    target_kl: Annotated[
        float | None,
        typer.Option(help="The same, until predictions differ by at most so many nats from the source's."),
    ] = None,
    calibration: Annotated[
        str, typer.Option(help="For all but plain rtn, a text file; builtin: typebar's own, Chinese, English and code.")
    ] = "builtin",
) -> None:
    """Write a model with fewer bits a weight: a GGUF file, as llama.cpp reads, or a folder, as vLLM does.

    Nothing is there until all of it is. `typebar eval` tells what it costs.
    """
    from typebar.model.cache import megabytes
    from typebar.model.download import resolve_model
    from typebar.quantize.quantize import Request
    from typebar.quantize.quantize import quantize as write

    request = Request(to, bits, not asymmetric, method, calibration, group, target_bpw, target_kl)
    request.check()
    written = write(resolve_model(source).path, request, stage)
    if mixed := written.mixed:
        print("\n".join(mixed.lines))
        print(f"{mixed.bits:.2f} bits a weight, KL {mixed.divergence:.3g} nats over {mixed.predictions} predictions")
    print(f"{to}: {megabytes(written.nbytes)}")
