# Sourced by other scripts: creates .venv in the checkout, and installs this project into it if pyproject.toml changed.
# $1: extras to install, such as "[test]". IPPO_CONSTRAINTS: a constraints file of pip in place of scripts/constraints.txt.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
python="${PYTHON:-python3}"
if [ ! -x .venv/bin/python ]; then
  echo "creating .venv with $("$python" --version)"
  "$python" -m venv .venv
fi
constraints="${IPPO_CONSTRAINTS:-scripts/constraints.txt}"
wanted="$(cat pyproject.toml "$constraints" <(echo "${1:-}" "$root") | sha256sum | cut -d' ' -f1)"
stamp=".venv/.installed$(echo "${1:-}" | tr -dc a-z)"
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  echo "installing into .venv (a minute or two the first time)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint "$constraints" --editable ".${1:-}"
  echo "$wanted" >"$stamp"
fi
