"""`nanwatch run -- python script.py`, where the script knows nothing of nanwatch.

The engine is the real Transformers where generate() runs. Elsewhere it is a package of that name in a
temporary folder, version 99.0, whose seam is missing: it stands for a fault.
"""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from nanwatch.attach import SEAMS
from nanwatch.journal.reader import JournalReader
from nanwatch.journal.source import Source
from nanwatch.run.environment import STARTUP, environment_of_child
from nanwatch.settings import Settings
from nanwatch_sidecar.app import create_app
from nanwatch_sidecar.journal_view import JournalView
from tests.seen import read

RUN = [sys.executable, "-m", "nanwatch", "run", "--"]
LOOKS_AWAY = (
    "nanwatch 0.1.0 does not look at transformers 99.0: "
    "there is no transformers.generation.utils.GenerationMixin.generate; the program runs on"
)


def run(
    *command: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return file


# The real engine


SCRIPT = """
    import multiprocessing, os, subprocess, sys

    def serve():
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.set_num_threads(1)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
            name_or_path=multiprocessing.current_process().name,
        )).eval()
        with torch.no_grad():
            model.get_input_embeddings().weight[3] = float("nan")
        batch = torch.tensor([[5, 6], [5, 3], [6, 7]])
        model.generate(
            batch, attention_mask=torch.ones_like(batch), max_new_tokens=2, do_sample=False,
            suppress_tokens=[3],  # no healthy prompt is to choose the poisoned token
        )

    def forked_and_here():
        serve()
        child = multiprocessing.get_context("fork").Process(target=serve, name="forked")
        child.start()
        child.join()

    if __name__ == "__main__":
        multiprocessing.current_process().name = sys.argv[1] if sys.argv[1:] else "main"
        if sys.argv[1:]:
            serve()
        else:
            spawned = multiprocessing.get_context("spawn").Process(target=serve, name="spawned")
            spawned.start()
            another = subprocess.Popen([sys.executable, __file__, "another"])
            forked_and_here()
            spawned.join()
            another.wait()
            print("served")
"""


def test_a_poisoned_prompt_is_named_in_every_process_of_the_program(journal: Path, tmp_path: Path) -> None:
    """Four processes, a batch of three each, the second prompt poisoned: made-up ids that end in -1."""
    script = written(tmp_path / "script.py", SCRIPT)
    done = run(sys.executable, script, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
    reader = JournalReader(journal)
    reader.poll()
    reader.close()
    found = {source.labels.model_name: source for source in reader.sources}
    assert set(found) == {"main", "forked", "spawned", "another"}
    for source in found.values():
        (request,) = source.corrupted.values()
        prompts = 3 if source.labels.model_name == "forked" else 0  # numbers go on, under a new name
        assert re.fullmatch(rf"anon-[0-9a-f]{{12}}-{prompts + 1}", request.request_id)
        assert (request.phase, request.first_step, request.finished) == ("prefill", 1, True)
        assert (source.totals.requests, source.totals.steps) == (3, 2)
        assert source.labels.runtime == "transformers"


def test_under_fail_fast_the_engine_dies_of_it_and_the_status_is_70(journal: Path, tmp_path: Path) -> None:
    script = written(tmp_path / "script.py", SCRIPT)
    done = run(sys.executable, script, "alone", NANWATCH_FAIL_FAST="1", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 70
    assert "NanLogitsError: NaNs detected in logits: {'anon-" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("nanwatch run: stopped at NaN in the logits of 'anon-")
    assert (read(journal).corrupted, read(journal).totals.fail_fast_trips) == (1, 1)


# An engine whose seam is not there


@pytest.fixture
def engine_99(tmp_path: Path) -> Path:
    """A folder with a Transformers of the future in it: the module is there, what is hooked into is not."""
    folder = tmp_path / "future"
    written(folder / "transformers" / "__init__.py", "__version__ = '99.0'\n")
    written(folder / "transformers" / "generation" / "__init__.py", "")
    written(folder / "transformers" / "generation" / "utils.py", "class GenerationMixin: pass\n")
    return folder


IMPORT = "import transformers.generation.utils"
WAYS: dict[str, list[str]] = {
    "a script": ["{python}", "script.py"],
    "-c": ["{python}", "-c", IMPORT],
    "-m": ["{python}", "-m", "script"],
    "-P": ["{python}", "-P", "-c", f"import sys; sys.path.insert(0, '.'); {IMPORT}"],
    "a console script": ["./console"],
    "a shell in between": ["sh", "-c", "true; {python} script.py"],
    "a subprocess": [
        "{python}",
        "-c",
        "import subprocess, sys; subprocess.run([sys.executable, 'script.py'])",
    ],
    "importlib": [
        "{python}",
        "-c",
        "import importlib as i; i.import_module('transformers.generation.utils')",
    ],
}
NOT_REACHED = {
    "-S": ["{python}", "-S", "-c", IMPORT],
    "-E": ["{python}", "-E", "-c", IMPORT],
    "-I": ["{python}", "-I", "-c", f"import sys; sys.path.insert(0, '.'); {IMPORT}"],
    "without its environment": ["env", "-u", "PYTHONPATH", "{python}", "-c", IMPORT],
    "switched off": ["env", "NANWATCH_ENABLED=0", "{python}", "-c", IMPORT],
}


def started(words: list[str], engine_99: Path) -> subprocess.CompletedProcess[str]:
    written(engine_99 / "script.py", IMPORT + "\n")
    written(engine_99 / "console", f"#!{sys.executable}\n{IMPORT}\n").chmod(0o755)
    return run(*(word.format(python=sys.executable) for word in words), cwd=engine_99)


@pytest.mark.parametrize("words", WAYS.values(), ids=WAYS)
def test_however_a_python_is_started_its_engine_is_met_once(
    journal: Path, engine_99: Path, words: list[str]
) -> None:
    done = started(words, engine_99)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{LOOKS_AWAY}\n")


@pytest.mark.parametrize("words", NOT_REACHED.values(), ids=NOT_REACHED)
def test_a_python_that_looks_away_runs_as_ever(journal: Path, engine_99: Path, words: list[str]) -> None:
    done = started(words, engine_99)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not journal.exists()


def test_one_warning_hook_active_0_and_the_program_runs_on(journal: Path, engine_99: Path) -> None:
    script = f"""
        {IMPORT}
        import importlib, transformers.generation.utils as utils
        importlib.reload(utils)
        print("output", flush=True)
        input()
        raise SystemExit(7)
    """
    file = written(engine_99 / "script.py", script)
    with subprocess.Popen(
        [*RUN, sys.executable, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "output\n"
        with scraped(journal) as lines:
            active = [line for line in lines if line.startswith("nanwatch_hook_active{")]
            versions = [line for line in lines if line.startswith("nanwatch_source_info{")]
        out, err = process.communicate("\n", timeout=60)
        assert (process.returncode, out, err) == (7, "", f"{LOOKS_AWAY}\n")
    assert [line.rpartition(" ")[2] for line in active] == ["0.0"]
    assert 'runtime="transformers"' in active[0]
    assert re.search(r'versions="nanwatch [^"]*, transformers 99\.0"', versions[0])
    (source,) = sources(journal)
    assert source.blind == LOOKS_AWAY.removesuffix("; the program runs on")


@contextmanager
def scraped(journal: Path) -> Iterator[list[str]]:
    view = JournalView(JournalReader(journal))
    yield TestClient(create_app(Settings(), view)).get("/metrics").text.splitlines()
    view.close()


def sources(journal: Path) -> list[Source]:
    reader = JournalReader(journal)
    reader.poll()
    reader.close()
    return list(reader.sources)


def test_status_says_why_while_the_process_lives(journal: Path, engine_99: Path) -> None:
    script = f"{IMPORT}\nimport subprocess, sys\nsubprocess.run([sys.executable, '-m', 'nanwatch', 'status'])"
    done = run(sys.executable, "-c", script, cwd=engine_99)
    listed = done.stdout.splitlines()
    assert listed[1].startswith("  blind   unknown engine 0 (transformers) replica 0")
    assert listed[3].strip() == LOOKS_AWAY.removesuffix("; the program runs on")


# The environments that it comes into


def test_a_python_that_imports_no_engine_imports_nothing_of_ours_and_its_path_is_its_own(
    journal: Path,
) -> None:
    script = "import sys; print(*sys.path, *sorted(sys.modules), sep='\\n')"
    inside = run(sys.executable, "-c", script).stdout.splitlines()
    outside = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    more = {line.partition(".")[0] for line in set(inside) - set(outside)}
    assert more <= {"sitecustomize", "importlib", "warnings"}
    assert not journal.exists()


def test_the_environments_own_sitecustomize_runs_in_the_program_and_in_its_children(
    journal: Path, tmp_path: Path
) -> None:
    written(tmp_path / "own" / "sitecustomize.py", "import sys\nprint('own', __name__, file=sys.stderr)\n")
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sitecustomize'])"
    given = os.pathsep.join([str(tmp_path / "own"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=environment_of_child({**os.environ, "PYTHONPATH": given}, Settings(), "run"),
    )
    assert (done.returncode, done.stderr) == (0, "own sitecustomize\n" * 2)


def test_an_error_in_the_environments_own_sitecustomize_is_told_as_ever(tmp_path: Path) -> None:
    written(tmp_path / "sitecustomize.py", "raise KeyError('its own')")
    told = [
        subprocess.run(
            [sys.executable, "-c", "print('on')"], capture_output=True, text=True, check=True, env=environment
        )
        for environment in (
            {"PYTHONPATH": str(tmp_path)},
            environment_of_child({"PYTHONPATH": str(tmp_path)}, Settings(), "run"),
        )
    ]
    assert [done.stdout for done in told] == ["on\n", "on\n"]
    assert told[0].stderr == told[1].stderr != ""


def test_an_interpreter_without_nanwatch_says_so_in_one_line_once_it_meets_an_engine(
    engine_99: Path, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = environment_of_child({}, Settings(), "run")
    script = f"print('on'); {IMPORT}, transformers; print('and on')"
    why = f"{python} cannot import nanwatch (ModuleNotFoundError: No module named 'nanwatch')"
    says = f"nanwatch does not look at transformers: {why}; install it there\n"
    for code, line in (("print('on'); print('and on')", ""), (script, says)):
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=False, cwd=engine_99, env=environment
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "on\nand on\n", line)


def test_switched_off_the_programs_environment_is_left_alone() -> None:
    given = {"NANWATCH_ENABLED": "0", "PYTHONPATH": "/given"}
    assert environment_of_child(given, Settings(enabled=False), "r") == {**given, "NANWATCH_RUN_ID": "r"}


@pytest.mark.parametrize(("given", "path"), [(None, ""), ("", ""), ("/a:/b", ":/a:/b")])
def test_what_was_on_pythonpath_stays_and_no_empty_entry_comes_in(given: str | None, path: str) -> None:
    environment = {} if given is None else {"PYTHONPATH": given}
    assert environment_of_child(environment, Settings(), "r")["PYTHONPATH"] == f"{STARTUP}{path}"


def test_every_engine_of_the_table_is_waited_for() -> None:
    text = (STARTUP / "sitecustomize.py").read_text(encoding="utf-8")
    listed = re.search(r"^ENGINES = \((.*?),?\)", text, re.MULTILINE)
    assert listed is not None
    assert set(re.findall(r'"(\w+)"', listed[1])) == {name.partition(".")[0] for name in SEAMS}
