"""The command that repeats a failure, which a harness prints as its last line.

A harness with a seed takes `--seed N`, the first one of its run. Where what failed has a seed of
its own, the command runs that part alone.
"""

from __future__ import annotations

import sys

from tools.harnesses import REPEAT


def repeat(target: str, *arguments: object, **variables: object) -> int:
    """Print `repeat: make <target> VAR=value … ARGS="…"` and return 1, the exit code of a failure.

    `arguments` are options of the harness, `variables` those of the Makefile."""
    words = [f"{name}={value}" for name, value in variables.items()]
    if unsafe := [each for each in map(str, (*words, *arguments)) if set(each) & set(" \"'$\\")]:
        raise ValueError(f"these need quotes in a shell: {unsafe}")
    text = " ".join(map(str, arguments))
    sys.stderr.flush()
    print(REPEAT + " ".join(["make", target, *words, f'ARGS="{text}"']), flush=True)
    return 1
