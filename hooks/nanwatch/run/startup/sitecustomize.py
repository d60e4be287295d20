"""Runs as each Python of a `nanwatch run` starts: nanwatch comes in with the first engine.

Until an engine is imported nothing of nanwatch is, nor asked for: most of a program's Pythons never
import one, and some are of environments that have no nanwatch, or too old for it. So this file takes
only what every interpreter has loaded as it starts.

The environment's own sitecustomize, which stands behind this one on sys.path, runs as if this one
were not there.
"""

import sys
from importlib.machinery import PathFinder
from os.path import abspath, dirname

ENGINES = ("transformers",)  # nanwatch.attach.SEAMS says what is hooked into in each


class FirstEngine:
    """A finder that finds nothing; asked for an engine, it lets nanwatch in and leaves."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Look at the name of what is imported."""
        if name.partition(".")[0] in ENGINES and self in sys.meta_path:
            sys.meta_path.remove(self)
            _let_nanwatch_in(name)


def _let_nanwatch_in(engine: str) -> None:
    try:
        from nanwatch.attach import watch_engines

        watch_engines()
    except ValueError:
        pass  # a variable that is not understood: the engine refuses to run, and says why
    except Exception as error:  # noqa: BLE001  an import never fails because of nanwatch
        why = f"{sys.executable} cannot import nanwatch ({type(error).__name__}: {error})"
        print(f"nanwatch does not look at {engine}: {why}; install it there", file=sys.stderr)


def _run_the_next() -> None:
    """Leave sys.path as it would be without us, and run the sitecustomize that is found there now."""
    ours = dirname(abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if abspath(folder) != ours]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    sys.modules["sitecustomize"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["sitecustomize"])


sys.meta_path.insert(0, FirstEngine())
_run_the_next()
