#!/usr/bin/env bash
# Run tests/gpu under the GPU's own rules, then under those of other GPUs (DFLASH_TARGET), each run on all GPUs of the host.
# Each run writes its part of record.json.
#
#   tests/gpu/suites.sh                          # own sm_80 sm_86 sm_89 sm_120
#   tests/gpu/suites.sh own sm_86
#   SECONDS_EACH=300 tests/gpu/suites.sh
#
# A line for each run; logs stay in $LOGS (a new folder by default). The exit status is 0 if no run failed.
set -u
cd "$(dirname "$0")/../.." || exit 1

PYTHON=${PYTHON:-python3} SECONDS_EACH=${SECONDS_EACH:-900} LOGS=${LOGS:-$(mktemp -d)}
workers=$(nproc)  # before OMP_NUM_THREADS, which nproc obeys
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=${NUMBA_NUM_THREADS:-4}
if ! gpus=$("$PYTHON" -c 'import cupy; print(cupy.cuda.runtime.getDeviceCount())' 2> /dev/null) || [ "$gpus" -eq 0 ]; then
    echo "no GPU that CuPy of $PYTHON can use" >&2
    exit 2
fi
export DFLASH_TEST_GPUS=$gpus
mkdir -p "$LOGS"

suite() { # rules
    local log="$LOGS/suite-$1.log" status
    unset DFLASH_TARGET
    [ "$1" = own ] || export DFLASH_TARGET=$1
    timeout "$SECONDS_EACH" "$PYTHON" -m pytest tests/gpu -n "$workers" -p no:benchmark -p no:cacheprovider > "$log" 2>&1
    status=$?
    printf '%-7s rc=%-3s %s\n' "$1" "$status" "$(tail -n 1 "$log")"
    grep -a '^FAILED' "$log" | sort -u
    return "$status"
}

[ $# -gt 0 ] || set -- own sm_80 sm_86 sm_89 sm_120
failed=0
for rules in "$@"; do suite "$rules" || failed=1; done
echo "logs: $LOGS"
exit "$failed"
