#!/usr/bin/env bash
# Runs the tests of paths, numbers, notebooks and the workflow as other machines would: `make portable`, or chosen
# settings alone, `workflow/portable.sh odd python3.12`.
#
# Settings are combined, so that all of them take less than six minutes on two quiet cores; two run at a time. Each
# is printed with its time and how it ended, and one that fails fails the whole at the end. The environments of other
# Pythons are made once, in `.portable/`, outside of that time.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
own="$root/.venv/bin/python"
longest=900 # seconds after which a setting is given up

# Which tests, and why these.
paths=(
  tests/workflow/test_names.py # names made of folders' names
  tests/workflow/test_settings.py # folders in a configuration, a command in a process of its own
  tests/workflow/test_fetch.py # locks and commands of Snakemake
  tests/workflow/test_measure.py # a sweep's shards, from a folder to its receipts
  tests/coupling_lib/store/test_store.py # files named by what was measured, times, texts in any language
  tests/companion/notebook # what notebooks are given
  tests/workflow/test_nbval.py # a notebook that runs in a kernel, and is compared
)
every_python=(
  tests/coupling_lib/metrics/test_coupling.py # every definition against a slow reference in float64
  tests/coupling_lib/metrics/test_variants.py
  tests/coupling_lib/svd # singular triplets with their residuals
  tests/coupling_lib/jacobian/test_tracing.py # Jacobians against automatic differentiation of the whole block
  tests/coupling_lib/jacobian/test_bf16_matmul.py # in narrow formats; the operator's file takes two minutes
)
numbers=(
  "${every_python[@]}"
  tests/coupling_lib/metrics/test_fuzz.py # matrices that hypothesis finds
  tests/coupling_lib/metrics/test_trajectory.py
  tests/coupling_lib/metrics/test_spectrum.py
)
# The newest transformers that was tried, beside the one of requirements.lock: the tests of what calls it, in three parts
# of about equal length. Metrics and singular vectors know no transformers; measures and the store reach it through these.
newer=transformers==5.24.0
newer_parts=("blocks inputs" "jacobian test_*.py" "models")
by_themselves=(
  tests/coupling_lib/store/test_sweep_memory.py # a limit on address space, which counts threads
  tests/workflow/test_warm.py # sockets, signals, the size of an environment
)

# The settings. What follows `tried` is a command in front of pytest.
# The library's modules lie where the tests do, also for the processes that these start.
tried() { # COMMAND ... -- TESTS
  local before=()
  while [ "$1" != -- ]; do before+=("$1") && shift; done
  "${before[@]}" timeout "$longest" "${python:-$own}" -m pytest -q -p no:cacheprovider -m "not browser" "${@:2}" </dev/null
}

odd() { # a copy of the checkout in a folder with an odd name, one core, another locale and time, no home
  local folder
  place=$(mktemp -d)
  trap 'rm -rf "$place"' EXIT
  folder="$place/- a clone's \"folder\" of 120 characters $(printf 'x%.0s' {1..81})/checkout"
  mkdir -p "$folder"
  tar -C "$root" -c --exclude='./.venv*' --exclude=./.git --exclude=./.audit --exclude=./.portable --exclude=./results \
    --exclude=./runs --exclude=./_build --exclude=__pycache__ . | tar -C "$folder" -x
  ln -s "$root/.venv" "$folder/.venv"
  cd "$folder" || return
  tried env PYTHONPATH="$folder" LC_ALL=C TZ=Pacific/Kiritimati HOME=/dev/null/home OMP_NUM_THREADS=1 \
    taskset -c "$(taskset -cp $$ | sed 's/.*: *//; s/[-,].*//')" -- "${paths[@]}"
}
# More threads than cores: one that waits lets the others work, or each small sum takes a slice of time of the system.
default() { # default instructions, 4 threads
  tried env PYTHONPATH="$root" ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=4 OMP_WAIT_POLICY=PASSIVE -- "${numbers[@]}"
}
avx2() { # avx2 instructions, 1 thread
  tried env PYTHONPATH="$root" ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=1 -- "${numbers[@]}"
}
plain() { tried env PYTHONPATH="$root" -- "${by_themselves[@]}"; } # plain pytest
empty() { tried env -i PATH="$PATH" -- "${by_themselves[@]}"; } # an empty environment

newer() { # a part of the library's tests with a newer transformers
  tried env PYTHONPATH="$root/.portable/$newer:$root" OMP_NUM_THREADS=1 -- -m "not browser and not thorough" \
    $(printf 'tests/coupling_lib/%s ' ${newer_parts[$1]})
}

another() { # another Python parses every file, imports every module of both houses, and runs tests
  local python="$root/.portable/${1#python}/bin/python"
  export PYTHONPATH="$root" OMP_NUM_THREADS=1
  "$python" -m compileall -q coupling_lib companion workflow book benchmarks notebooks tests && "$python" -c '
import importlib, pkgutil, companion, coupling_lib
for house in (coupling_lib, companion):
    for module in pkgutil.walk_packages(house.__path__, house.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
' && tried -- "${every_python[@]}"
}

pythons() { # the other Pythons that the project runs on; one of pyenv's names may stand for a version that is switched off
  for minor in 11 12 13; do
    for program in "$(command -v python3.$minor)" "$HOME"/.pyenv/versions/3.$minor.*/bin/python; do
      if [ "$("$program" -c 'import sys, venv; print("3.%d" % sys.version_info[1])' 2>/dev/null)" = 3.$minor ]; then
        "$own" -c "import sys; sys.exit(sys.version_info[1] == $minor)" && echo "python3.$minor $program"
        break
      fi
    done
  done
}

made() { # the environment of another Python, once, set up as the Makefile sets up the book's
  local folder="$root/.portable/${1#python}" start=$SECONDS
  if ! cmp -s "$root/requirements.lock" "$folder/.ready"; then
    cd "$root" && "$2" -m venv --clear "$folder" && "$folder/bin/python" -m pip install --quiet --no-compile \
      --disable-pip-version-check -c requirements.lock torch && "$root/.venv/bin/uv" pip install --quiet --no-deps \
      --python "$folder/bin/python" -r requirements.lock -e . && cp requirements.lock "$folder/.ready" \
      || { echo "error: no environment of $1" >&2; return 1; }
    echo "set-up of $1: $((SECONDS - start)) s, outside of the six minutes"
  fi
}

made_newer() { # the newer transformers, once
  [ -d "$root/.portable/$newer" ] || "$own" -m pip install --quiet --no-deps --no-compile \
    --disable-pip-version-check --target "$root/.portable/$newer" "$newer"
}

one() { # run a setting, and print how it ended, a failure after the end of its output
  local start=$SECONDS output
  cd "$root" && unset OMP_NUM_THREADS MAKEFLAGS
  if output=$(case $1 in python*) another "$1" ;; newer*) newer "${1#newer}" ;; *) "$1" ;; esac 2>&1); then
    printf 'passed  %4d s  %s\n' $((SECONDS - start)) "$1"
  else
    printf '%s\nFAILED  %4d s  %s  %s\n' "$(tail -n 100 <<<"$output")" $((SECONDS - start)) "$1" "$(tail -n 1 <<<"$output")"
    return 1
  fi
}

if [ "${1:-}" = --one ]; then
  one "$2"
  exit
fi
settings=(odd default avx2 plain empty $(pythons | cut -d ' ' -f 1))
known=(newer0 newer1 newer2 "${settings[@]}")
for name in "$@"; do
  [[ " ${known[*]} " == *" $name "* ]] || { echo "error: no setting is called '$name'; there are: ${known[*]}" >&2; exit 1; }
done
# The newest transformers is tried by name, before a release: it takes as long as all the others.
chosen=("${@:-${settings[@]}}")
# What a report of a failure needs first.
grep -m 2 -E '^(model name|flags|Features)' /proc/cpuinfo || uname -m
echo "cores $(nproc) of $(nproc --all); $("$own" --version), $own; checkout $root; home ${HOME:-none}; temporary ${TMPDIR:-/tmp}"
while read -r name program; do
  [[ " ${chosen[*]} " != *" $name "* ]] || made "$name" "$program" </dev/null &
done < <(pythons)
[[ " ${chosen[*]} " != *" newer"* ]] || made_newer </dev/null &
for job in $(jobs -p); do wait "$job" || exit 1; done
printf '%s\n' "${chosen[@]}" | xargs -P 2 -I {} bash "${BASH_SOURCE[0]}" --one {} || { echo "error: not every setting passed" >&2; exit 1; }
echo "${#chosen[@]} settings passed in $SECONDS s"
