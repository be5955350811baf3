"""The embedded data: documentation strings of installed packages, read from their source files without importing them.

People wrote them as PEP 257 asks: a first line that sums up, and below it what there is to say. The first line is the
human summary, the rest the document. The two splits hold different packages.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from tbactl.errors import TaskError
from tbactl_preference.docstring_text import holds_summary, is_supported, split_docstring, words
from tbactl_preference.pairs import SPLITS, SummaryPair, text_id

logger = logging.getLogger(__name__)

# Packages, or folders of large ones. All come with tbactl's own dependencies.
PACKAGES = {
    "train": (
        "numpy",
        "scipy",
        "sympy",
        "matplotlib",
        "pandas",
        "nltk",
        "torch/nn",
        "torch/optim",
        "torch/distributions",
        "torch/utils",
        "torch/distributed",
        "transformers/generation",
        "transformers/utils",
    ),
    "test": ("sklearn", "networkx"),
}
# As pip knows them, for their versions.
DISTRIBUTIONS = (
    "numpy",
    "scipy",
    "sympy",
    "matplotlib",
    "pandas",
    "nltk",
    "torch",
    "transformers",
    "scikit-learn",
    "networkx",
)
_SKIPPED_FOLDERS = frozenset({"tests", "test", "testing", "_vendor", "externals", "vendored", "_pyinstaller", "f2py"})
_SHINGLE_WORDS = 6
# Of its runs of six words, the share that a document may have in common with those taken before it.
_MAX_SHARED = 0.4


def docstring_pairs() -> dict[str, list[SummaryPair]]:
    """All pairs by split, in an order that mixes packages; the same for the same installed versions.

    Training data is taken first: what it holds already is no test.

    Raises:
        TaskError: none of a split's packages is installed.
    """
    seen = _Seen()
    pairs = {split: [pair for pair in _candidates(PACKAGES[split]) if seen.is_new(pair)] for split in SPLITS}
    for split, found in pairs.items():
        if not found:
            raise TaskError(f"no package of {', '.join(PACKAGES[split])} is installed; name other documents")
        logger.info("docstrings split=%s pairs=%d", split, len(found))
        found.sort(key=lambda pair: text_id(pair.document))
    return pairs


class _Seen:
    """Remembers pairs, to refuse equal and almost equal ones."""

    def __init__(self) -> None:
        self._summaries: set[str] = set()
        self._shingles: set[int] = set()

    def is_new(self, pair: SummaryPair) -> bool:
        key = " ".join(words(pair.summary))
        shingles = _shingles(pair.document)
        shared = len(shingles & self._shingles) / len(shingles)
        if key in self._summaries or shared > _MAX_SHARED:
            return False
        self._summaries.add(key)
        self._shingles |= shingles
        return True


def _shingles(text: str) -> set[int]:
    found = words(text)
    return {hash(tuple(found[i : i + _SHINGLE_WORDS])) for i in range(max(1, len(found) - _SHINGLE_WORDS + 1))}


def _candidates(packages: Sequence[str]) -> Iterator[SummaryPair]:
    for package in packages:
        root = _folder(package)
        if root is None:
            logger.warning("docstrings package=%s is not installed: left out", package)
            continue
        for file in sorted(root.rglob("*.py")):
            module = file.relative_to(root.parents[package.count("/")]).with_suffix("").parts
            if not _SKIPPED_FOLDERS.intersection(module):
                yield from _pairs_of_file(file, module=".".join(part for part in module if part != "__init__"))


def _folder(package: str) -> Path | None:
    top, _, below = package.partition("/")
    spec = find_spec(top)
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0], below) if locations else None


def _pairs_of_file(file: Path, *, module: str) -> Iterator[SummaryPair]:
    source = file.read_bytes()
    if source.count(b'"""') + source.count(b"'''") < 2:
        return
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a template, or for another Python
        return
    for name, text in _documented(tree):
        split = split_docstring(text)
        if split is None:
            continue
        summary, document = split
        package = module.partition(".")[0]
        titled = f"{package}: {name}\n{document}"
        if (
            "<|" not in titled
            and is_supported(summary, document=titled)
            and not holds_summary(document, summary=summary)
        ):
            yield SummaryPair(document=titled, summary=summary, origin=f"{module}:{name}")


def _documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(signature, documentation string) of public functions, classes and methods, and of numpy's `add_newdoc` calls."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _of_definition(node, prefix="")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _of_newdoc(node.value)


def _of_definition(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, *, prefix: str
) -> Iterator[tuple[str, str]]:
    if node.name.startswith("_"):
        return
    text = ast.get_docstring(node, clean=False)
    if isinstance(node, ast.ClassDef):
        if text:
            yield f"class {node.name}", text
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _of_definition(child, prefix=f"{node.name}.")
    elif text:
        arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        shown = [name for name in arguments if name not in ("self", "cls")][:6]
        yield f"{prefix}{node.name}({', '.join(shown)})", text


def _of_newdoc(call: ast.Call) -> Iterator[tuple[str, str]]:
    """Calls of `add_newdoc(module, name, text)`, numpy's way to document C code; methods are (name, text) pairs."""
    if not isinstance(call.func, ast.Name) or call.func.id != "add_newdoc" or len(call.args) < 3:
        return
    name, text = _constant(call.args[1]), call.args[2]
    if isinstance(text, ast.Tuple) and len(text.elts) == 2:
        name, text = f"{name}.{_constant(text.elts[0])}", text.elts[1]
    if name and _constant(text):
        yield name, _constant(text)


def _constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
