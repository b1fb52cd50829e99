"""Draw the README's picture, .github/course.png: one row of scores, merged at every level.

    python tools/readme_picture.py
"""

from pathlib import Path

import numpy as np

from helpers.figures import merging, style

TARGET = Path(__file__).resolve().parent.parent / ".github" / "course.png"


def main() -> None:
    """Save what `merging.five_levels` would show in notebook 04."""
    style.show = lambda fig, alt: fig.savefig(TARGET, dpi=style.DPI)
    merging.show = style.show
    merging.five_levels(np.random.default_rng(12).standard_normal(32) * 1.5)
    print(TARGET)


if __name__ == "__main__":
    main()
