"""nanwatch: which requests came out as NaN, on which GPU, within a second.

    probe = nanwatch.NanProbe(model_name="llama")
    probe.observe(logits, request_ids)       # [R, V], in every step; returns at once
    probe.finish(finished_ids)

Public names are resolved when they are first asked for: `import nanwatch` imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attach import watch_engines as watch_engines
    from .attribution import nans_to_dict as nans_to_dict
    from .counting import count_nans_per_row as count_nans_per_row
    from .engines.huggingface.generate import watch_generate as watch_generate
    from .engines.module import watch as watch
    from .failfast import NanLogitsError as NanLogitsError
    from .failfast import raise_if_nan_logits as raise_if_nan_logits
    from .inspection import RowCounts as RowCounts
    from .inspection import inspect_rows as inspect_rows
    from .observation import Observation as Observation
    from .probe import NanProbe as NanProbe
    from .request_scope import request_ids as request_ids

__version__ = "0.1.0"

_HOMES = {
    "NanLogitsError": "failfast",
    "NanProbe": "probe",
    "Observation": "observation",
    "RowCounts": "inspection",
    "count_nans_per_row": "counting",
    "inspect_rows": "inspection",
    "nans_to_dict": "attribution",
    "raise_if_nan_logits": "failfast",
    "request_ids": "request_scope",
    "watch": "engines.module",
    "watch_engines": "attach",
    "watch_generate": "engines.huggingface.generate",
}
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604  the names are strings


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'nanwatch' has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
