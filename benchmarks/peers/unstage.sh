#!/usr/bin/env bash
# Unpacks what stage_vllm.sh packed, the folders given, into $SITE (/tmp/site), to be named in PYTHONPATH.
set -euo pipefail

site=${SITE:-/tmp/site}
mkdir -p "$site"
unpack='import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="fully_trusted")'
find "$@" -name '*.tar.xz' -print0 | xargs -0 -P 8 -I{} python3 -c "$unpack" {} "$site"
python3 -m compileall -q -j 0 "$site" >/dev/null 2>&1 || true
du -sm "$site"
