"""Starts .NET inside this Python, with Microsoft's parser and binder in it."""

import os
import sys
from pathlib import Path

from install import ASSEMBLIES, ICU_VERSION


def parts():
    """The directory that install.py has made."""
    root = os.environ.get("CHANGEFEED_TEST_TSQL")
    if not root or not (Path(root) / "made-from").exists():
        raise SystemExit(
            "CHANGEFEED_TEST_TSQL must name the directory that crates/testkit/python/tsql/install.py "
            "has made; ./test sets it"
        )
    return Path(root).resolve()


def enter():
    """Runs this program again in the environment that .NET needs: the loader of shared libraries
    looks at its variables only when a process starts."""
    root = parts()
    wanted = {
        "LD_LIBRARY_PATH": str(root / "libraries"),
        "CLR_ICU_VERSION_OVERRIDE": ICU_VERSION,
        # Whatever the language of this machine: C is the invariant culture.
        "LC_ALL": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Otherwise it leaves pipes for debuggers in the directory for temporary files.
        "COMPlus_EnableDiagnostics": "0",
    }
    unwanted = [name for name in ["DOTNET_SYSTEM_GLOBALIZATION_INVARIANT"] if name in os.environ]
    if unwanted or any(os.environ.get(name) != value for name, value in wanted.items()):
        environment = {name: value for name, value in os.environ.items() if name not in unwanted}
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], {**environment, **wanted})


def start():
    """From here on, `import System` and `import Microsoft…` work."""
    from clr_loader import get_coreclr
    from pythonnet import set_runtime

    root = parts()
    set_runtime(
        get_coreclr(runtime_config=str(root / "runtime.json"), dotnet_root=str(root / "dotnet"))
    )
    import clr

    for name in ASSEMBLIES:
        if name.startswith("Microsoft."):
            clr.AddReference(str(root / "assemblies" / f"{name}.dll"))
