"""What the ONNX schemas say of an operator: its since-version and how many operands it takes; looked up once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hetero.errors import ModelError

_ALIAS = "ai.onnx"


@dataclass(frozen=True, slots=True)
class Signature:
    """Operand counts of one schema. `inputs[k]` names input k where it must be present, None where it may be left
    out; a variadic last input repeats up to `max_inputs`."""

    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    inputs: tuple[str | None, ...]
    variadic: bool

    def required(self, index: int) -> str | None:
        """The name of input `index` where it must be present."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.variadic else None


def canonical_domain(domain: str) -> str:
    """ "" for both spellings of the ONNX domain."""
    return "" if domain == _ALIAS else domain


def imported_version(domain: str, opsets: Mapping[str, int], op_type: str, node: str = "") -> int:
    """The opset version of `domain` that the model imports; 1 for a custom domain it uses without importing.

    Raises: ModelError where a domain of the ONNX standard is used but not imported.
    """
    version = opsets.get(domain)
    if version is None and not domain:
        version = opsets.get(_ALIAS)
    if version is not None:
        return version
    if domain in _standard_domains():
        op = f"{domain}::{op_type}" if domain else op_type
        raise ModelError(
            f"the model uses domain {domain or _ALIAS!r} without importing it", op=op, node=node or None
        )
    return 1


@lru_cache(maxsize=16384)
def since_version(domain: str, op_type: str, opset: int) -> int:
    """The since-version of the operator's schema under `opset`; `opset` itself where onnx knows no schema, or only
    a deprecated one."""
    schema = _schema(domain, op_type, opset)
    return opset if schema is None else int(schema.since_version)


@lru_cache(maxsize=16384)
def signature(domain: str, op_type: str, version: int) -> Signature | None:
    """The operand counts of the schema at `version`, or None where onnx knows none."""
    schema = _schema(domain, op_type, version)
    if schema is None:
        return None
    option = _defs().OpSchema.FormalParameterOption
    inputs = tuple(None if p.option == option.Optional else str(p.name) for p in schema.inputs)
    variadic = bool(schema.inputs) and schema.inputs[-1].option == option.Variadic
    return Signature(
        schema.min_input, schema.max_input, schema.min_output, schema.max_output, inputs, variadic
    )


def _schema(domain: str, op_type: str, version: int) -> Any:
    defs = _defs()
    try:
        schema = defs.get_schema(op_type, version, domain)
    except (defs.SchemaError, TypeError, ValueError):
        # TypeError and ValueError: names or versions that cannot cross into C++ (surrogates, beyond int32).
        return None
    return None if schema.deprecated else schema


def _defs() -> Any:
    """onnx.defs, loaded at first use: a child executor runs programs, and asks no schema."""
    import onnx.defs

    return onnx.defs


@lru_cache(maxsize=1)
def _standard_domains() -> frozenset[str]:
    return frozenset(str(s.domain) for s in _defs().get_all_schemas())
