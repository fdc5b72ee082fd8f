#!/usr/bin/env bash
# Makes .venv in the repository and installs what is asked for, once.
#
#   bash launch/setup.sh          what a run needs
#   bash launch/setup.sh test     and what the core tests need
#
# A stamp (hash of setup.py, constraints.txt and this file) makes a second call
# return at once. RL_TPU_PYTHON names another interpreter than python3.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
extras="tasks"
for extra in "$@"; do
  extras="$extras,$extra"
done
cd "$root"

fail() {
  echo "launch/setup.sh: $1" >&2
  exit 1
}

find_python() {
  local name
  for name in "${RL_TPU_PYTHON:-}" python3 python3.11 python3.12 python3.13; do
    if [[ -n "$name" ]] && "$name" -c \
      'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  fail "no Python 3.11 or newer found; set RL_TPU_PYTHON to one."
}

fingerprint() {
  "$venv/bin/python" - setup.py constraints.txt launch/setup.sh <<'PYTHON'
import hashlib
import sys

digest = hashlib.sha256()
for name in sys.argv[1:]:
  with open(name, 'rb') as file:
    digest.update(file.read())
print(digest.hexdigest())
PYTHON
}

stamp="$venv/.rl_tpu_installed_${extras//,/_}"
if [[ -x "$venv/bin/python" && -f "$stamp" ]] \
  && [[ "$(cat "$stamp")" == "$(fingerprint)" ]]; then
  exit 0
fi

if [[ ! -x "$venv/bin/python" ]]; then
  python="$(find_python)"
  echo "making .venv with $("$python" --version)"
  "$python" -m venv "$venv" \
    || fail "$python cannot make a venv; install its venv module."
fi
echo "installing rl-tpu[$extras] into .venv (once)"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet -c constraints.txt -e ".[$extras]"
# Without its dependencies: seqio would bring TensorFlow (2 GB), and the engine
# interface that is used here needs none of them.
"${pip[@]}" install --quiet --no-deps "google-jetstream==0.2.2"
fingerprint > "$stamp"
