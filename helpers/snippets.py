"""Read kernels from cuda_snippets/: `load` for a RawKernel, `show_snippet` to read one, `show_diff` to see what a step changes."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from IPython.display import Markdown, display

ROOT = Path(__file__).resolve().parent.parent / "cuda_snippets"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.M)


def names() -> list[str]:
    """All kernels of the course, as `load` takes them: "safe/v1_block.cu", …"""
    return sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.cu"))


def text(name: str) -> str:
    """A snippet's text as it stands in the file; `FileNotFoundError` with the closest names if there is none."""
    path = (ROOT / name).resolve()
    if not path.is_relative_to(ROOT) or not path.is_file():
        close = difflib.get_close_matches(name, names(), n=3, cutoff=0.3) or names()
        raise FileNotFoundError(f"no snippet {name!r} in cuda_snippets/; did you mean {', '.join(close)}?")
    return path.read_text(encoding="utf-8")


def load(name: str) -> str:
    """CUDA source of snippet `name`, ready for `cp.RawKernel`.

    Local includes are pasted in, because CuPy's cache looks at the source it is given and never sees a changed header.
    `#line` marks keep the line numbers of the files in every message.
    """
    return _inline(name, set())


def _inline(name: str, seen: set[str]) -> str:
    seen.add(name)
    body = text(name)

    def paste(match: re.Match) -> str:
        included = match[1] if (ROOT / match[1]).is_file() else (Path(name).parent / match[1]).as_posix()
        if included not in seen and not (ROOT / included).is_file():
            return match[0]  # not ours: left to the compiler
        following = body.count("\n", 0, match.end()) + 2
        pasted = "" if included in seen else _inline(included, seen).rstrip("\n") + "\n"
        return f'{pasted}#line {following} "{name}"'

    return f'#line 1 "{name}"\n{_INCLUDE.sub(paste, body)}'


def show_snippet(name: str, start: str | None = None, stop: str | None = None) -> None:
    """Show a snippet, or its lines from the first that contains `start` to the next that contains `stop`."""
    lines = text(name).splitlines()
    first = next((i for i, line in enumerate(lines) if start and start in line), 0)
    last = next((i for i, line in enumerate(lines) if stop and i > first and stop in line), len(lines) - 1)
    if start and start not in lines[first]:
        raise ValueError(f"{name} has no line with {start!r}")
    _fenced("\n".join(lines[first : last + 1]), "cpp")


def show_diff(before: str, after: str) -> None:
    """Show how snippet `after` differs from `before`, leaving out the comment that opens each file."""
    a, b = (_without_header(text(name)) for name in (before, after))
    lines = [line for line in difflib.unified_diff(a, b, before, after, lineterm="", n=2) if not line.startswith("@@")]
    _fenced("\n".join(lines), "diff")


def _without_header(source: str) -> list[str]:
    lines = source.splitlines()
    while lines and (lines[0].startswith("//") or not lines[0].strip()):
        lines.pop(0)
    return lines


def _fenced(code: str, language: str) -> None:
    display(Markdown(f"```{language}\n{code}\n```"))
