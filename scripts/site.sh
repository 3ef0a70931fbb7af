#!/usr/bin/env bash
# From a fresh clone: creates .venv, installs the docs extra, and builds the documentation into build/site; a warning is an
# error. Open build/site/docs/index.html.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" "[docs]"
exec .venv/bin/python -m sphinx -W --keep-going -q -c docs -b html "$@" . build/site
