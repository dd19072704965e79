"""The list of library calls, grouped by library; targets that share an entry are listed together.

So are targets that differ only in the element type (LAPACK's `sgetrf`, `dgetrf`)."""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from prose import as_markdown

from hloexec.ops.library_calls.mosaic.registry import operations
from hloexec.ops.registry import CUSTOM_CALLS

__all__ = ["on_page_markdown"]

_LIBRARIES = {
    "cuBLAS": r"__cublas|cublas_",
    "cuDNN": r"__cudnn|cudnn|__op\$",
    "cuSOLVER and equivalents": r"__cusolver|cusolver|cuhybrid|tridiagonal|cu_(lu|cholesky)",
    "Sparse matrices": r"cusparse|cpu_csr",
    "CUB": r"__cub|xla\.gpu\.ext\.cub",
    "LAPACK and BLAS": r"lapack_|blas_",
    "oneDNN": r"__onednn",
    "Transformer Engine": r"te_",
    "Custom kernels": r"tpu_custom_call|mosaic|triton|__gpu\$xla\.gpu|CuteDSL|__xla_gpu_cutedsl",
    "Host callbacks": r"xla_.*callback|tf\.",
    "Random numbers, transforms, search": r".*threefry|.*fft|.*TopK",
}
_OF_TYPE = re.compile(r"\b[SDCZ](?=[A-Z]{4,5}\b)")
_OTHERS = "Compilers and frameworks"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Append the list to the introduction in library-calls.md."""
    if page.file.src_uri != "library-calls.md":
        return markdown
    entries: dict[str, list[str]] = {}
    for target, entry in CUSTOM_CALLS.items():
        entries.setdefault(_OF_TYPE.sub("x", entry.documentation), []).append(target)
    groups: dict[str, list[str]] = {library: [] for library in (_OTHERS, *_LIBRARIES)}
    for documentation, targets in entries.items():
        groups[_library(targets[0])].append(f"{_heading(targets)}\n\n{as_markdown(documentation)}")
    parts = [f"{markdown}\nThere are {len(CUSTOM_CALLS)} targets."]
    for library, sections in groups.items():
        parts += [f"## {library}", *sections]
    return "\n\n".join([*parts, _operations()])


def _operations() -> str:
    """The operations of kernels for TPUs, those that share a definition in one row."""
    names: dict[str, list[str]] = {}
    for name, entry in operations().items():
        names.setdefault(entry.documentation, []).append(f"`{name}`")
    rows = [f"| {' '.join(group)} | {' '.join(as_markdown(text).split())} |" for text, group in names.items()]
    return "\n".join(["## Operations of Mosaic kernels", "", "| operation | value |", "| --- | --- |", *rows])


def _library(target: str) -> str:
    return next((name for name, pattern in _LIBRARIES.items() if re.match(pattern, target)), _OTHERS)


def _heading(targets: list[str]) -> str:
    """The first target as the heading, the others below it."""
    heading = f"### `{targets[0]}` {{ #{re.sub(r'[^A-Za-z0-9_.-]', '-', targets[0])} }}"
    others = " · ".join(f"`{target}`" for target in targets[1:])
    return f"{heading}\n\nalso {others}" if others else heading
