"""`python -m benchmarks`: every benchmark, or those that are named."""

import subprocess
import sys
from importlib import import_module

ALL = (
    *("counting", "observe", "step", "visible", "journal", "sidecar", "scale"),  # nanwatch by itself
    *("serving", "containment"),  # in Transformers
    *("scaling", "gpu"),
)


def main(names: list[str]) -> int:
    """Run them one after the other; 2 for a name that is none, 1 if the GPU's found something wrong."""
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    status = 0
    for name in names or ALL:
        if name == "gpu":
            status = _in_an_interpreter_of_its_own(name)
        else:
            import_module(f"benchmarks.{name}").main()
        print(flush=True)
    return status


def _in_an_interpreter_of_its_own(name: str) -> int:
    """Triton decides when it is first imported, as Transformers may do, how its kernels run."""
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode  # noqa: S603  one of ALL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
