"""Makes .venv hold just what requirements.lock says, and this package; then writes the file its argument names.

That file is the promise that set-up ended well: it is removed before anything changes and written last. While work is
under way `.venv/unfinished` exists; who finds it, or a `.venv` that belongs to another directory or another Python,
starts from an empty one, because an installer that was killed leaves packages that look installed and are not.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
UNFINISHED = VENV / "unfinished"

# Where to install is decided here. How to reach a registry (index, proxy, certificates) stays as the user set it.
PLACEMENT = (
    "PIP_CONSTRAINT",
    "PIP_DRY_RUN",
    "PIP_NO_DEPS",
    "PIP_PREFIX",
    "PIP_REQUIREMENT",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_ROOT",
    "PIP_TARGET",
    "PIP_USER",
    "PYTHONHOME",
    "PYTHONPATH",
    "UV_CONSTRAINT",
    "UV_OVERRIDE",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_TARGET",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
)


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in PLACEMENT}
    return clean | {"VIRTUAL_ENV": str(VENV), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def run(*command: str | Path, extra: dict[str, str] | None = None) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, env=environment() | (extra or {}))


def works(*command: str | Path) -> bool:
    try:
        tried = subprocess.run([str(part) for part in command], check=False, env=environment(), capture_output=True)
    except OSError:
        return False
    return tried.returncode == 0


def usable(stamp: Path) -> bool:
    """Whether `.venv` can be brought up to date as it is. Its stamps carry the directory it was made for."""
    strangers = [other for other in VENV.glob("ready-*") if other != stamp]
    # Only a Python asked for by name replaces another that would do.
    wanted = f"== {tuple(sys.version_info[:3])}" if os.environ.get("PYTHON") else ">= (3, 11)"
    right_python = f"import sys; sys.exit(not sys.version_info[:3] {wanted})"
    return not UNFINISHED.exists() and not strangers and works(VENV / "bin/python", "-c", right_python)


def up_to_date(stamp: Path) -> bool:
    if not stamp.exists():
        return False
    made = stamp.stat().st_mtime
    return all(made > source.stat().st_mtime for source in (LOCK, ROOT / "pyproject.toml")) and usable(stamp)


def pinned(name: str) -> str:
    """The lines of the lock that pin one package, hashes included."""
    kept: list[str] = []
    for line in LOCK.read_text().splitlines():
        if kept or line.startswith(f"{name}=="):
            kept.append(line)
            if not line.endswith("\\"):
                return "\n".join(kept) + "\n"
    raise SystemExit(f"stelae: requirements.lock does not pin {name}: run make lock")


def ensure_uv() -> None:
    """uv of any version will do to start with: the lock names uv, so syncing brings the right one."""
    if works(VENV / "bin/uv", "--version"):
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirement:
        requirement.write(pinned("uv"))
        requirement.flush()
        run(VENV / "bin/python", "-m", "pip", "install", "--quiet", "--require-hashes", "-r", requirement.name)


def registry() -> dict[str, str]:
    """uv does not read pip's settings: the mirror and certificates that pip was told of, in uv's words."""
    listing = [str(VENV / "bin/python"), "-m", "pip", "config", "list"]
    asked = subprocess.run(listing, check=False, env=environment(), capture_output=True, text=True)
    settings: dict[str, str] = {}
    for line in asked.stdout.splitlines():
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = value.strip("'\"")
    passed_on = {}
    if "index-url" in settings and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_NO_INDEX"} & os.environ.keys():
        passed_on["UV_DEFAULT_INDEX"] = settings["index-url"]
    if "cert" in settings and "SSL_CERT_FILE" not in os.environ:
        passed_on["SSL_CERT_FILE"] = settings["cert"]
    return passed_on


def empty() -> None:
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()


def set_up(stamp: Path) -> None:
    fresh = not usable(stamp)
    if fresh:
        empty()
    stamp.unlink(missing_ok=True)
    UNFINISHED.touch()
    if fresh:
        print(f"Making .venv with Python {sys.version.split()[0]}", flush=True)
        run(sys.executable, "-m", "venv", VENV)
    ensure_uv()
    uv, target = VENV / "bin/uv", VENV / "bin/python"
    run(uv, "pip", "sync", "--python", target, "--require-hashes", LOCK, extra=registry())
    run(uv, "pip", "install", "--python", target, "--quiet", "--no-deps", "--no-build-isolation", "--editable", ROOT)
    UNFINISHED.unlink()
    stamp.touch()


def main() -> int:
    stamp = ROOT / sys.argv[1]
    with LOCK.open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)  # a second make waits here, then finds the work done
        if up_to_date(stamp):
            return 0
        try:
            set_up(stamp)
        except subprocess.CalledProcessError as failure:
            command = " ".join(Path(part).name for part in failure.cmd[:4])
            print(f"stelae: set-up failed at `{command}` (see above); run make again to start afresh", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("stelae: set-up was interrupted; run make again to start afresh", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
