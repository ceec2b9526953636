"""Where an interpreter of a version is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class NoPython(Exception):
    """There is no interpreter of that version; the text says how to get one."""


def python_of(version: str, uv: Path) -> Path:
    """The newest interpreter of ``version`` ("3.13"): of pyenv, of uv, or on the path.

    :raises NoPython: there is none.
    """
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    # pyenv's own commands stand on the path whether or not their version is chosen, so they are left out.
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != root / "shims"]
    path = [*(str(folder / "bin") for folder in (root / "versions").glob(f"{version}.*")), *path]
    found = subprocess.run(
        [uv, "python", "find", "--no-project", "--no-python-downloads", version],
        env=os.environ | {"PATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise NoPython(f"There is no Python {version}: `uv python install {version}`, or name others with --python")
    return Path(found.stdout.strip())
