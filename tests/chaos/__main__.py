"""`make chaos ROUNDS=500`: the rounds of the suite, more of them, with a table at the end."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.rounds import run_rounds


def main() -> int:
    """Run the rounds; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nanwatch-chaos-") as folder:
        tally = run_rounds(Path(folder), arguments.rounds, arguments.seed)
    print(tally.table())
    print("\n".join(tally.broken))
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
