"""The C++ part, for the torch that is installed: its ABI is that of one minor version of torch."""

from __future__ import annotations

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

minor = ".".join(torch.__version__.split(".")[:2])

setup(
    install_requires=["llmk-core>=0.1,<0.2", f"torch=={minor}.*"],
    ext_modules=[
        CppExtension(
            "llmk_nova._C",
            ["csrc/device.cpp", "csrc/kernels.cpp", "csrc/ops.cpp"],
            extra_compile_args=["-O1", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
