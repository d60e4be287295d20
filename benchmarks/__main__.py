"""`python -m benchmarks`: every benchmark, or those that are named."""

import sys
from importlib import import_module

ALL = ("counting", "observe", "step", "visible", "journal", "scaling", "serving", "sidecar", "scale", "gpu")


def main(names: list[str]) -> int:
    """Run them one after the other; 2 for a name that is none."""
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    for name in names or ALL:
        import_module(f"benchmarks.{name}").main()
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
