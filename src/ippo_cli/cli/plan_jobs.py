"""Plan every configuration of a sweep in one process: `python -m ippo_cli.cli.plan_jobs FILE`.

The file contains a JSON list of configurations, and is overwritten with a list of results: null, or error message and
exit code. It is a separate process so that the sweep's process does not keep data, rewards and libraries in memory.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from ippo_cli.compose.load import build_config
from ippo_cli.config.errors import UNEXPECTED, IppoError
from ippo_cli.runs.garbage_collection import relax_gc


def main() -> None:
    """Plan all configurations and write the results; the output of planning is discarded."""
    relax_gc()
    file = Path(sys.argv[1])
    with redirect_stdout(StringIO()):
        answers = [_plan_error(plain) for plain in json.loads(file.read_text())]
    file.write_text(json.dumps(answers))


def _plan_error(plain: dict[str, Any]) -> tuple[str, int] | None:
    from ippo_cli.planning.plan import show_plan

    try:
        show_plan(build_config(plain))
    except IppoError as error:
        return str(error), error.exit_code
    except Exception as error:
        return f"{type(error).__name__}: {error}", UNEXPECTED
    return None


if __name__ == "__main__":
    main()
