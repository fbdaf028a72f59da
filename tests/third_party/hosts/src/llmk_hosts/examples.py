"""What the conformance kit tries the launcher on: addresses of this machine, without a command in between."""

from __future__ import annotations

import sys

HERE = {"address": "127.0.0.1", "hosts": ["127.0.0.2", "127.0.0.3"], "command": [sys.executable]}
