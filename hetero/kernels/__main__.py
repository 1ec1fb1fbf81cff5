"""`python -m hetero.kernels`: compile the jitted kernels into their cache on disk, as a step of the installation."""

from __future__ import annotations

from hetero.kernels import load_all
from hetero.kernels.jit import compile_all

if __name__ == "__main__":
    load_all()
    print(f"{compile_all()} jitted functions are ready")
