#!/usr/bin/env bash
# Makes .venv in the repository and installs what is asked for, once.
#
#   bash launch/setup.sh          what a run needs
#   bash launch/setup.sh test     and what the core tests need
#   bash launch/setup.sh test mutation    and what tests.mutation needs
#
# A stamp (hash of setup.py, constraints.txt and this file, and the extras that
# are installed) makes a later call return at once. RL_TPU_PYTHON names another
# interpreter than python3.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
stamp="$venv/.rl_tpu_installed"
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

# Extras in .venv, as " a b "; empty if it was made from other files.
installed=" "
if [[ -x "$venv/bin/python" && -f "$stamp" ]]; then
  { read -r before; read -r extras; } < "$stamp"
  if [[ "$before" == "$(fingerprint)" ]]; then
    installed=" $extras "
  fi
fi

wanted="$installed"
for extra in tasks "$@"; do
  [[ "$wanted" == *" $extra "* ]] || wanted="$wanted$extra "
done
if [[ "$wanted" == "$installed" ]]; then
  exit 0
fi
wanted="$(echo $wanted)"

if [[ ! -x "$venv/bin/python" ]]; then
  python="$(find_python)"
  echo "making .venv with $("$python" --version)"
  "$python" -m venv "$venv" \
    || fail "$python cannot make a venv; install its venv module."
fi
echo "installing rl-tpu[${wanted// /,}] into .venv (once)"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
rm -f "$stamp"
# google-jetstream comes without its dependencies: seqio would bring TensorFlow
# (2 GB), and the interface that is used here needs none of them. pip complains
# of that at every later install, which is left out of what is shown. The
# operators of cosmic-ray, too, need nothing of what its runner depends on.
"${pip[@]}" install --quiet -c constraints.txt -e ".[${wanted// /,}]" \
  2> >(grep -v -e '^google-jetstream 0.2.2 requires' \
    -e '^cosmic-ray 8.7.0 requires' \
    -e 'dependency resolver does not currently' >&2 || true)
"${pip[@]}" install --quiet --no-deps "google-jetstream==0.2.2"
if [[ " $wanted " == *" mutation "* ]]; then
  "${pip[@]}" install --quiet --no-deps "cosmic-ray==8.7.0"
fi
printf '%s\n%s\n' "$(fingerprint)" "$wanted" > "$stamp"
