"""`python -m trainer4090.ablation FOLDER PARENT_PID [PLUGIN ...]`: the job of a sweep with `task=ablate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trainer4090 import ablation, resume, run_folder
from trainer4090.errors import exit_code_of, lines_of
from trainer4090.plugin_modules import blamed
from trainer4090.plugins.loading import load
from trainer4090.process import end_with_parent


def main(folder: Path, parent: int, plugins: Sequence[str]) -> int:
    """Measure what the overrides that are saved in `folder` say, and end with the process `parent`; the exit code."""
    try:
        end_with_parent(parent)
        with run_folder.locked(folder):
            load(plugins)
            return ablation.run(ablation.make(resume.overrides_of(folder)), folder)
    except Exception as caught:
        error = blamed(caught)
        print("\n".join(lines_of(error)), file=sys.stderr)
        return exit_code_of(error)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
