"""The stand-in's `-c CODE`: runs the code, to which SGLang seems to be installed. Standard library only."""

from __future__ import annotations

import importlib.metadata
import sys

from tests.kit.standin_model import VERSION


def main() -> None:
    real = importlib.metadata.version
    importlib.metadata.version = lambda name: VERSION if name == "sglang" else real(name)
    _, option, code = sys.argv
    assert option == "-c"
    exec(code, {"__name__": "__main__"})


if __name__ == "__main__":
    main()
