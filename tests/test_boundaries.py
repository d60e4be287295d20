"""Who may import whom: the two halves share the journal and the settings, and nothing else."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOOKS = ROOT / "hooks" / "nanwatch"
SIDECAR = ROOT / "sidecar" / "nanwatch_sidecar"

# Only these files know the engine or framework of their name.
ENGINES = {"huggingface": {"transformers", "tokenizers"}, "vllm": {"vllm"}}
# Only these are written for a GPU; what imports them can do without.
KERNELS = {"kernels.py", "row_kernel.py"}


def imported(file: Path) -> Iterator[str]:
    """Yield every module that a file imports, relative ones with their full name."""
    package = [*file.relative_to(ROOT).parts[1:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            names = [alias.name for alias in node.names] if node.module is None else [node.module]
            yield from (".".join([*base, name]) for name in names)


def roots(file: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(file)}


def third_party(file: Path) -> set[str]:
    return roots(file) - set(sys.stdlib_module_names) - {"nanwatch", "nanwatch_sidecar"}


def ids(files: list[Path]) -> list[str]:
    return [str(file.relative_to(ROOT)) for file in files]


HOOK_FILES = sorted(HOOKS.rglob("*.py"))
JOURNAL_FILES = sorted((HOOKS / "journal").glob("*.py"))
SIDECAR_FILES = sorted(SIDECAR.rglob("*.py"))


@pytest.mark.parametrize("file", HOOK_FILES, ids=ids(HOOK_FILES))
def test_in_the_engine_only_the_standard_library_and_torch_are_imported(file: Path) -> None:
    engine = next((needs for name, needs in ENGINES.items() if name in file.parts), set())
    demo = {"transformers", "tokenizers"} if "demo" in file.parts else set()
    plugin = {"pytest"} if file == HOOKS / "pytest_plugin.py" else set()
    kernels = {"triton"} if file.name in KERNELS else set()
    assert third_party(file) <= {"torch"} | engine | demo | plugin | kernels


@pytest.mark.parametrize("file", HOOK_FILES, ids=ids(HOOK_FILES))
def test_the_hooks_never_import_the_sidecar(file: Path) -> None:
    assert "nanwatch_sidecar" not in roots(file)


@pytest.mark.parametrize("file", JOURNAL_FILES, ids=ids(JOURNAL_FILES))
def test_the_journal_is_standard_library_and_knows_nothing_of_the_rest(file: Path) -> None:
    assert third_party(file) == set()
    ours = {name for name in imported(file) if name.startswith("nanwatch")}
    assert all(name.startswith("nanwatch.journal") for name in ours)


@pytest.mark.parametrize("file", SIDECAR_FILES, ids=ids(SIDECAR_FILES))
def test_the_sidecar_takes_of_the_hooks_only_journal_and_settings(file: Path) -> None:
    ours = {name for name in imported(file) if name.split(".")[0] == "nanwatch"}
    allowed = ("nanwatch.journal", "nanwatch.settings")
    assert all(name == "nanwatch" or name.startswith(allowed) for name in ours)
    assert not roots(file) & {"torch", "transformers", "vllm"}


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_importing_nanwatch_imports_no_torch() -> None:
    assert (
        run("import sys, nanwatch, nanwatch.settings, nanwatch.cli; print('torch' in sys.modules)") == "False"
    )


def test_looking_at_logits_on_the_cpu_imports_no_triton() -> None:
    code = "import sys, torch, nanwatch; nanwatch.inspect_rows(torch.zeros(2, 3)); "
    assert run(code + "print('nanwatch.kernels' in sys.modules)") == "False"


def test_public_names_are_there_and_resolve() -> None:
    code = "import nanwatch; print([n for n in nanwatch.__all__ if getattr(nanwatch, n, None) is None])"
    assert run(code) == "[]"


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    code = "import nanwatch\ntry: nanwatch.nothing\nexcept AttributeError as e: print(e)"
    assert run(code) == "module 'nanwatch' has no attribute 'nothing'"


def test_the_sidecar_is_imported_with_torch_out_of_reach() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import nanwatch_sidecar.server, nanwatch_sidecar.app; print('served without torch')"
    )
    assert run(code) == "served without torch"


@pytest.mark.parametrize("file", HOOK_FILES + SIDECAR_FILES, ids=ids(HOOK_FILES + SIDECAR_FILES))
def test_a_module_says_what_it_is_for_and_stays_small(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 320
