"""``python -m llmk``: the command line."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The working directory, which may be a downloaded checkpoint. Nothing is imported before this line that Python
        # would look for there, but llmk itself: `python -P -m llmk` does without that too.
        del sys.path[0]
    from llmk.cli.main import main

    sys.exit(main())
