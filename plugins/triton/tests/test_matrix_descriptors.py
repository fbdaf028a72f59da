"""Matrix descriptors that ptxas got wrong are found in its machine code, and right ones are not."""

from __future__ import annotations

import pytest
from matrix_descriptors import misaddressed

RIGHT = """
        /*0540*/                   STS.64 [R5+UR4], R6 ;                                        /* 0x0000000605007988 */
        /*1fb0*/                   UMOV UR4, URZ ;                                              /* 0x0000003f00047c82 */
        /*1fd0*/                   UIADD3.X UR5, UR4, 0x40000040, URZ, UP0, !UPT ;              /* 0x4000004004057890 */
"""
"""The register held the address of shared memory before."""
WRONG = """
        /*0b10*/                   ULEA UR20, UR4, UR20, 0x18 ;                                 /* 0x0000001404147291 */
        /*1020*/                   UIADD3.X UR7, UR20, -0x7fffffe0, URZ, UP0, !UPT ;            /* 0x8000002014077890 */
"""
WIDE = """
        /*0e40*/                   UMOV UR20, URZ ;                                             /* 0x0000003f00147c82 */
        /*0e50*/              @UP1 UIADD3.64 UR18, UP2, UR6, 0x80, URZ ;                        /* 0x0000008006127897 */
        /*0e60*/                   UIADD3.X UR7, UR19, 0x40000040, URZ, UP0, !UPT ;             /* 0x4000004013077890 */
"""
"""Instructions of 64 bits write to two registers."""
OTHER = """
        /*0b10*/                   ULEA UR20, UR4, UR20, 0x18 ;                                 /* 0x0000001404147291 */
        /*1020*/                   UIADD3.X UR7, UR20, -0x61c88647, URZ, UP0, !UPT ;            /* 0x9e3779b914077890 */
"""
"""A number that is no half of a descriptor."""


@pytest.mark.parametrize("sass", [WRONG, WIDE], ids=["address", "two registers"])
def test_wrong_ones_are_found(sass: str) -> None:
    assert misaddressed(sass)


@pytest.mark.parametrize("sass", [RIGHT, OTHER], ids=["zero", "other number"])
def test_right_ones_are_not(sass: str) -> None:
    assert not misaddressed(sass)
