"""Kernels in C++: the library that the wheel is built with, and a thin module of torch functions per family of
kernels."""
