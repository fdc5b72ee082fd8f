#!/usr/bin/env bash
# Runs a group of tests in the environment of launch/setup.sh.
#
#   bash tests/run.sh [core|tpu|sandbox|adapters|launch|all] [pytest arguments]
#
# core is everything outside the folders of the other groups. launch needs xpk,
# which gets an environment of its own (.venv-launch). A group that has
# no folder yet is named; that is a failure unless `all` was asked for. Without
# pytest arguments core runs in up to four processes, one for each core.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
others=(tpu sandbox adapters launch)
group="core"
case "${1:-}" in
  core | tpu | sandbox | adapters | launch | all)
    group="$1"
    shift
    ;;
esac

extras=(test)
if [[ "$group" == adapters || "$group" == all ]]; then
  extras+=(data gguf)
fi
if [[ "$group" == tpu || "$group" == launch || "$group" == all ]]; then
  extras+=(tpu)
fi
if [[ "$group" == launch || "$group" == all ]]; then
  extras+=(chaos)
fi
bash launch/setup.sh "${extras[@]}"

pytest=(.venv/bin/python -m pytest -q)

# xpk pins versions that the trainer must not have: it lives apart, as a user
# would install it.
install_launch_tools() {
  local wanted=tests/launch/requirements.txt
  if cmp --silent "$wanted" .venv-launch/installed.txt; then
    return
  fi
  echo "installing xpk and kubernetes-validate into .venv-launch (once)"
  .venv/bin/python -m venv --clear .venv-launch
  .venv-launch/bin/python -m pip --disable-pip-version-check install --quiet \
    --no-deps --no-compile -r "$wanted"
  cp "$wanted" .venv-launch/installed.txt
}

run_core() {
  local skipped=()
  for other in "${others[@]}" bench; do
    skipped+=("--ignore=tests/$other")
  done
  # A file of tests stays in one process: its tests share compiled programs.
  if [[ $# -eq 0 ]]; then
    set -- --numprocesses=logical --maxprocesses=4 --dist=loadfile
  fi
  # Models this small run in no time and take long to compile: most of LLVM's
  # optimizations are left out here. The other groups, and every run of a user,
  # compile with all of them. (At level 0 sums round differently.)
  XLA_FLAGS="${XLA_FLAGS:-} --xla_backend_optimization_level=1" \
    "${pytest[@]}" "${skipped[@]}" "$@"
}

run_other() {
  local name="$1"
  shift
  if [[ ! -d "tests/$name" ]]; then
    echo "tests/run.sh: there is no group '$name' yet (no folder tests/$name)."
    [[ "$group" == "all" ]]
    return
  fi
  if [[ "$name" == launch ]]; then
    install_launch_tools
  fi
  "${pytest[@]}" "tests/$name" "$@"
}

case "$group" in
  core) run_core "$@" ;;
  all)
    run_core "$@"
    for other in "${others[@]}"; do
      run_other "$other" "$@"
    done
    ;;
  *) run_other "$group" "$@" ;;
esac
