"""Plan every configuration of a sweep in one process: `python -m ippo_cli.cli.plan_jobs FILE`.

The file is a JSON list of configurations, and is replaced by a list of answers: null, or the error's words and code.
A process of its own, for the sweep's must not hold what data, rewards and models' libraries take.
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
    """Answer for all configurations; what planning prints is not wanted."""
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
