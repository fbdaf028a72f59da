"""What ``kernels.py`` measures: one module per kind of kernel, each with a function ``cases(device)``."""
