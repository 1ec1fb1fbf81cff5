"""MatMul and the Add of a row that follows it, as one kernel: the row is added while the results are in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.derived import Keeper
from hetero.kernels.gemm import matmul_shape
from hetero.kernels.gemm_packed import bind_packed, is_packed
from hetero.kernels.operands import fail
from hetero.kernels.quiet import Quiet
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Spec, TensorSpec

DOMAIN, OP_TYPE = "hetero.internal", "BiasedMatMul"
_FLOAT32 = np.dtype(np.float32)


def joins_bias(b: TensorSpec, bias: TensorSpec) -> bool:
    """Whether this kernel is for a product with such a matrix, to which such a row is added."""
    row = len(b.shape) == 2 and bias.shape == b.shape[1:] and b.dtype == bias.dtype
    return row and is_packed(np, (1, b.shape[0]), b.shape, b.dtype)


def _not_a_models(op: Operation, types: Sequence[Any]) -> str | None:
    """Models cannot name it: the runtime makes it of their instructions."""
    return None if op.attr("joined") is True else "is the runtime's own"


@kernel(OP_TYPE, domain=DOMAIN, versions=(1,), dispatch=Dispatch.LIBRARY, portable=False, check=_not_a_models)
def biased_matmul(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A (…, K), B (K, N), a row (N) of float32 -> A B + row, the bits of MatMul and Add. On the host."""
    a, b, bias = (tensor(op, specs, k) for k in range(3))
    if not joins_bias(b, bias) or a.dtype != _FLOAT32 or xp is not np:
        fail(op, "is for packed matrices and rows")
    output = TensorSpec(a.dtype, matmul_shape(op, a.shape, b.shape))
    keep = Keeper()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        if not output.size:
            return Quiet(lambda: None)
        return bind_packed(keep, inputs[0], inputs[1], outputs[0], inputs[2])

    return computed((output,), bind)
