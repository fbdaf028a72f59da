"""``llmk serve`` as a child that ends when its standard input is closed, so that it does not outlive its actor."""

from __future__ import annotations

import os
import runpy
import sys
import threading


def _follow() -> None:
    while os.read(0, 1 << 16):  # sys.stdin would be locked when this process ends
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_follow, name="llmk-parent", daemon=True).start()
    sys.argv = ["llmk", "serve", *sys.argv[1:]]
    runpy.run_module("llmk", run_name="__main__")
