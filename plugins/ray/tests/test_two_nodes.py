"""A model over the two nodes of a real Ray cluster: the one case that every run of the tests has."""

from __future__ import annotations

from pathlib import Path

from ray_cluster import nodes
from spread_nodes import check_spread


def test_ranks_that_cut_layers(tmp_path: Path) -> None:
    """Of a model that has layers of two kinds."""
    with nodes(1) as cluster:
        cluster.add()
        check_spread(tmp_path, cluster, "qwen3-next-one-kv-head", tensor=2, pipeline=1)
