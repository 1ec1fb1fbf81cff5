"""The table of families says which file registers what."""

from __future__ import annotations

import subprocess
import sys

from hetero.kernels.base import lookup, registered
from hetero.kernels.families import families

NOTES = """
import sys
from hetero.kernels import base

real, found = base.kernel, set()

def noting(*op_types, domain="", **options):
    file = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]
    found.update(f"{domain}::{op_type}={file}" for op_type in op_types)
    return real(*op_types, domain=domain, **options)

base.kernel = noting
from hetero.kernels import load_all
load_all()
print("\\n".join(found))
"""


def test_each_operator_is_found_in_the_files_that_register_it() -> None:
    done = subprocess.run([sys.executable, "-c", NOTES], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    listed = {f"{domain}::{op}={file}" for (domain, op), files in families().items() for file in files}
    assert listed == set(done.stdout.split())
    assert set(families()) <= {
        (d.domain, d.op_type) for d in registered()
    }  # tests register some of their own


def test_looking_a_kernel_up_loads_its_family_and_no_other() -> None:
    program = (
        "import sys; from hetero.kernels.base import lookup\n"
        "assert lookup('', 'Softmax', 13) is not None and lookup('', 'NoSuchOp', 1) is None\n"
        "assert 'hetero.kernels.softmax' in sys.modules and 'hetero.kernels.conv' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert lookup("", "Conv", 11) is not None
