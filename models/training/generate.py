"""Writes samples of the corpus as JSON lines, to look at them or to use them elsewhere.

python models/training/generate.py --count 100 --seed 7 --split train
"""

import argparse
import json
from itertools import islice

from corpus import samples
from rendering import ChatTemplate
from train import DEMO


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=("train", "test"), default="train")
    parser.add_argument("--category", help="keep only this category")
    options = parser.parse_args()
    template = ChatTemplate.of(DEMO)
    chosen = (sample for sample in samples(options.seed, options.split) if options.category in (None, sample.category))
    for sample in islice(chosen, options.count):
        line = {"category": sample.category, "prompt": template.prompt(sample), "reply": template.reply(sample)}
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
