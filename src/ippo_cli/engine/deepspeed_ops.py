"""DeepSpeed's compiled operators: which are built, and which this machine can build."""

from __future__ import annotations

import contextlib
import io
import logging


def list_deepspeed_ops() -> dict[str, str]:
    """By operator `installed`, `can be built` or `cannot be built`. Imports DeepSpeed; raises its `ImportError`."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        from deepspeed.git_version_info import installed_ops
        from deepspeed.ops.op_builder.all_ops import ALL_OPS

        found = {}
        for name, builder in ALL_OPS.items():
            if installed_ops.get(name):
                found[name] = "installed"
            else:
                found[name] = "can be built" if builder.is_compatible(verbose=False) else "cannot be built"
    return found
