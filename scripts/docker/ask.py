"""What run_with_docker.sh has to know of a configuration, found out inside the image: the host may have no Python.

`python3 -m scripts.docker.ask forward NAME…` prints those of the caller's variables that a trial is given.
`python3 -m scripts.docker.ask settings` prints what the environment's configuration says, one value a line.
"""

from __future__ import annotations

import sys

from benchmarks.bert.complaint import REFUSED, complain
from benchmarks.bert.config import VARIABLES, load
from benchmarks.bert.names import nearest

_OF_A_RUN = (*VARIABLES, "OMP_NUM_THREADS")
_SET_BY_THE_LAUNCHER = ("DATA_DIR", "RESULT_FILE", "CACHES_CLEARED")


def forward(names: list[str]) -> list[str]:
    """Raises ValueError for names that are nearly one of ours: a trial would not see them, so none would complain."""
    misspelt = [
        f"{name} is not a variable of this project; did you mean {near}? Rename or unset it"
        for name in names
        if name not in VARIABLES and (near := nearest(name, VARIABLES))
    ]
    if misspelt:
        raise ValueError("\n".join(misspelt))
    return [name for name in names if name in _OF_A_RUN and name not in _SET_BY_THE_LAUNCHER]


def settings() -> list[str]:
    """Raises ConfigError."""
    config = load()
    numbers = (config.num_nodes, int(config.clear_caches), config.seed)
    return [*map(str, numbers), config.ruleset, str(config.data_dir), config.submission_platform]


def main() -> int:
    question, *names = sys.argv[1:]
    try:
        answer = settings() if question == "settings" else forward(names)
    except ValueError as error:  # ConfigError too
        return complain(error, REFUSED)
    for value in answer:
        print(value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
