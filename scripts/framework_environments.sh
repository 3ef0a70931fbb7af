#!/usr/bin/env bash
# Creates .venv-frameworks/NAME for each agent framework that tests/frameworks run. They need nothing of this project.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="${IPPO_FRAMEWORK_VENVS:-$root/.venv-frameworks}"
install() {
  local venv="$folder/$1"
  shift
  [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}
install pydantic_ai 'pydantic-ai-slim[openai]==2.68.0'
install langgraph 'langgraph==1.2.24' 'langchain==1.5.2' 'langchain-openai==1.7.4'
install smolagents 'smolagents[openai]==1.26.0'
echo "run the tests with: python -m pytest tests/frameworks"
