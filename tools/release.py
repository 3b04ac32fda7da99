"""Builds wheel and sdist, and tries both as a user would: in fresh environments, outside of the checkout.

    make release-check

Each is installed with ``[all]`` and without extras. There ``headrace demo`` gives its proof, or says how to install
torch, and the first blocks of the README do what they say: the commands everywhere, the Python where torch is.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MOST_BYTES = 2_000_000
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSIDE = ("headrace/py.typed", "headrace/_version.py", "LICENSE")


def main() -> None:
    """Build, look inside, install, try."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    packages = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *packages)
    check_changelog()
    for package in packages:
        check_contents(package)
    for package in packages:
        with tempfile.TemporaryDirectory(prefix="headrace-release-") as folder:
            for extra in ("[all]", ""):
                try_out(package, extra, Path(folder))
                print(f"{package.name}{extra}: installs, and the README's first blocks run", flush=True)


def run(*command: str | Path, cwd: Path | None = None, code: int = 0) -> str:
    """Run a command and return what it printed; if it ends with another code, show that and stop."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}exit code {done.returncode}")
    return done.stdout + done.stderr


def version() -> str:
    """Return the version of the sources."""
    text = (ROOT / "src/headrace/_version.py").read_text(encoding="utf-8")
    return text.split('__version__ = "')[1].split('"')[0]


def check_changelog() -> None:
    """The newest section of the changelog is of this version; it has a date once the version is no ``.dev``."""
    heading = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1].splitlines()[0]
    wanted, _, is_dev = version().partition(".dev")
    if not re.fullmatch(rf"{re.escape(wanted)}, {'unreleased' if is_dev else '[0-9]{4}-[0-9]{2}-[0-9]{2}'}", heading):
        raise SystemExit(f"CHANGELOG.md begins with {heading!r}, and the version is {version()}: correct one of them")
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    if f"version: {wanted}\n" not in cited:
        raise SystemExit(f"CITATION.cff does not name version {wanted}: correct it")


def check_contents(package: Path) -> None:
    """Licence and the marker of types are inside, and the package is small."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as found:
            names = found.namelist()
    else:
        with tarfile.open(package) as archive:
            names = archive.getnames()
    missing = [wanted for wanted in INSIDE if not any(name.endswith(f"/{wanted}") or name == wanted for name in names)]
    size = package.stat().st_size
    if missing or size > MOST_BYTES:
        raise SystemExit(f"{package.name}: lacks {missing}, has {size:,} bytes; at most {MOST_BYTES:,} are allowed")
    print(f"{package.name}: {size:,} bytes, {len(names)} files", flush=True)


def try_out(package: Path, extra: str, folder: Path) -> None:
    """Install a package in an environment of its own, and do what the README begins with."""
    venv.create(folder / "env", with_pip=True, clear=True)
    python, headrace = folder / "env/bin/python", folder / "env/bin/headrace"
    constraints = ["-c", ROOT / "constraints.txt"]
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints, f"{package}{extra}")
    here = folder / "here"  # the demo's texts and tokeniser are those of the README's blocks
    if extra:
        print(run(headrace, "demo", here), flush=True)
    else:
        shutil.rmtree(here / "store")
        if "pip install 'headrace[torch]'" not in run(headrace, "demo", code=8):
            raise SystemExit(f"{package.name}: without torch, headrace demo does not say how to install it")
    if not run(headrace, "--version", "--verbose", cwd=here).startswith(f"headrace {version()}\n"):
        raise SystemExit(f"{package.name}: headrace --version does not say {version()}")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("## Ten lines that train")[1].split("\n## ")[0]
    program = ""
    for kind, code in FENCE.findall(readme):
        if kind == "sh":
            for line in code.replace("\\\n", " ").splitlines():
                run(headrace, *shlex.split(line, comments=True)[1:], cwd=here)
        elif kind == "python":
            program += code
    if extra:
        (here / "blocks.py").write_text(program, encoding="utf-8")
        run(python, "blocks.py", cwd=here)
    run(python, "-c", "import headrace; print(len(headrace.open('store')))", cwd=here)


if __name__ == "__main__":
    main()
