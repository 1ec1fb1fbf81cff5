"""Which GPUs an actor's process may see: those that Ray reserved for it, and no others."""

from __future__ import annotations

import os

import ray

VARIABLE = "CUDA_VISIBLE_DEVICES"


def hide_devices() -> str:
    """Have CUDA see the GPUs that this actor reserved; returns CUDA_VISIBLE_DEVICES as it is then.

    Outside of an actor it only looks.

    Ray sets the variable for actors that reserve GPUs. For one that reserves none it leaves it as it finds it, mostly
    unset, and a library in a CPU child would open a context on every GPU of the node. Call it before any is loaded.
    """
    if ray.is_initialized():  # asking for the context would start a Ray
        context = ray.get_runtime_context()
        if context.get_actor_id() is not None and not context.get_accelerator_ids().get("GPU"):
            os.environ[VARIABLE] = ""
    return os.environ.get(VARIABLE, "")
