"""Writes rules.yml as a PrometheusRule, for the Prometheus Operator: `python -m dashboards.prometheus_rule`.

    --runbook https://wiki.example/nanwatch/runbook.md   where your copy of runbook.md is
    --output my-rules.yaml                               another file than the committed one; - prints it

A PrometheusRule's spec is a rule file, so its lines go in as they are, comments and all.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .build import RUNBOOK

RULES = Path(__file__).with_name("rules.yml")
FILE = Path(__file__).parent.parent / "deploy/kubernetes/rules/prometheusrule.yaml"

HEADER = """\
# Made from dashboards/rules.yml by `make dashboard`; not to be edited. With your own runbook's address:
#   python -m dashboards.prometheus_rule --runbook https://wiki.example/runbook.md --output my-rules.yaml
#
# Your Prometheus may ask for a label here: see ruleSelector of the Prometheus resource.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: nanwatch
spec:
"""


def text(runbook: str = RUNBOOK) -> str:
    """Return the manifest, with the runbook's address put in."""
    _, found, rest = RULES.read_text(encoding="utf-8").partition("\ngroups:\n")
    lines = f"{found.lstrip()}{rest}".replace(RUNBOOK, runbook).splitlines()
    return HEADER + "".join(f"  {line}".rstrip() + "\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file."""
    asked = _parser().parse_args(arguments)
    if str(asked.output) == "-":
        sys.stdout.write(text(asked.runbook))
    else:
        asked.output.write_text(text(asked.runbook), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.prometheus_rule", description="Write rules.yml as a PrometheusRule."
    )
    parser.add_argument("--runbook", default=RUNBOOK, metavar="URL", help="where your copy of runbook.md is")
    parser.add_argument(
        "--output", type=Path, default=FILE, metavar="FILE", help="where to write it; - prints it"
    )
    return parser


if __name__ == "__main__":
    main()
