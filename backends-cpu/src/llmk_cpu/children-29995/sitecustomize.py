
import sys
from importlib.util import spec_from_file_location


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, '/work/wt/kita/backends-cpu/src/llmk_cpu/probe.py') if name == 'llmk_cpu.probe' else None


sys.meta_path.insert(0, Finder)
sys.path.append('/tmp/kita/snap.run.28822/tools')
import stale_mutant
