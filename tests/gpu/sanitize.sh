#!/usr/bin/env bash
# Run a few small cases of every op under compute-sanitizer: accesses out of bounds (memcheck), races in shared memory
# (racecheck), reads of memory that nobody wrote (initcheck).
#
#   tests/gpu/sanitize.sh                        # all, in parallel
#   tests/gpu/sanitize.sh delta moe              # of some ops
#   TOOLS=racecheck SECONDS_EACH=600 tests/gpu/sanitize.sh delta
#   CASES="27B, a tree" tests/gpu/sanitize.sh attention      # those whose names contain a text
#
# A line for each run; logs stay in $LOGS (a new folder by default). The exit status is that of the worst run. CuPy's pool is
# off, so that every array has an allocation of its own. racecheck does not follow one lane that arrives at a barrier for its
# warp, so for racecheck kernels are compiled with EVERY_LANE_ARRIVES (dflash/kernels/gpu/include/mbarrier.cuh): they are the
# kernels in use but for these arrivals.
set -u
cd "$(dirname "$0")/../.." || exit 1

python=${PYTHON:-python3}
tools=${TOOLS:-memcheck racecheck initcheck}
limit=${SECONDS_EACH:-300}
logs=${LOGS:-$(mktemp -d)}
mkdir -p "$logs"

# Small cases, between them every kernel of the op; none that provokes an error on purpose.
declare -A cases=(
    [attention]="test_attend[halves-a chain over a border]
        test_attend[halves-a tree over a border]
        test_attend[halves-a prompt]
        test_attend[halves everywhere-a tree over a border]
        test_attend[halves everywhere-a prompt]
        test_attend[float32-second of a page]
        test_attend[q8_0-27B, a tree]
        test_attend[q8_0 everywhere-a tree over a border]
        test_attend[q4_0-27B, a tree]
        test_attend[q4_0-a prompt]
        test_attend[q4_0/q8_0 everywhere-27B, first token]
        test_unpack[kinds2]
        test_compact[layers0-kinds0]
        test_compact[layers1-kinds2]"
    [attention_rows]="test_the_definition[halves-(300, 6, 1, 128)-pending rows]
        test_the_definition[halves-(20, 8, 4, 256)-prompts]"
    [attention_row]="test_the_bits_of_both[27B-63]
        test_the_bits_of_both[one KV head of 48-700]
        test_the_bits_of_both[64 heads for one-4223]"
    [delta]="test_chain[(2, 4, 32, 32)]
        test_reference[5 in a tree]
        test_reference[6 over 2 heads, 64 x 64]
        test_reference[65 rows of text]
        test_any_company[(2, 4, 32, 32)]
        test_little_shared_memory[(2, 4, 32, 32)]
        test_flush"
    [one_row]="test_the_bits_of_a_step[(1, 2, 64, 64)-two of many-norm in the launch]
        test_the_bits_of_a_step[(2, 4, 128, 128)-sixteen-norm apart]
        test_several_sequences[3-norm in the launch]"
    [block_attention]="test_block_attend[a window over the end of the ring]
        test_block_attend[everything]"
    [conv]="test_reference[2 chain and 9 tree-4]
        test_reference[2 prefill and 70 prefill-4]
        test_flush[4]"
    [linear]="test_every_format[13-Q4_K]
        test_every_format[31-Q6_K]
        test_add_keeps_the_residual
        test_a_published_token_changes_no_bit[768]"
    [wide]="test_every_format[Q4_K]
        test_gate_and_up[300-kinds2]
        test_fused_norms_and_a_captured_stream"
    [prefill]="test_every_format[hopper-Q4_K]
        test_every_format[hopper, kept-Q6_K]
        test_gated[hopper-70]"
    [device]="test_words_go_up_across_and_down[1029]
        test_a_batch_on_the_device"
    [split_norm]="test_the_same_bits_in_any_company[96-1024]
        test_gated_products_of_normed_tokens[20-kinds0]"
    [moe]="test_every_format[Q4_K]
        test_every_format_in_a_prompt[Q4_K]
        test_ties_go_to_the_lower_number"
    [norm]="test_rms_norm[three odd rows]
        test_rms_norm[two vectors and a bit]
        test_any_company[96]"
    [embed]="test_every_format[7-Q4_K]
        test_every_format[7-F16]
        test_tokens_that_are_not_there_give_zeros"
    [pass_start]="test_the_bits_of_three_launches[Q4_K-5120-32-1.0-3]
        test_the_bits_of_three_launches[IQ4_NL-2080-7-1.0-9]"
    [rope]="test_rotate[a tree-uint16]
        test_rotate[a prompt-float32]
        test_angles[1.0]"
    [sample]="test_draws_are_those_of_the_cpu[normal-4099]
        test_log_probabilities[normal-1000]
        test_a_row_in_any_company
        test_edits_are_made_and_taken_back[normal-1000]"
    [candidates]="test_candidates[ties-1000]
        test_rows_of_a_forward"
    [tree]="test_grow[False-ties]
        test_grow[True-fewer]
        test_grow_as_far_as_it_reaches
        test_draft_trees_are_written_below_their_roots[far apart]
        test_walk[five]
        test_walk[three of five]
        test_features
        test_pick"
    [confidence]="test_soft_cap[3x203 to 3]
        test_reach[3 blocks of 6 from 0, 48 and 16]"
)

# The first argument is a macro for all kernels, or empty; the second is the log, by which the process is found; the others are
# those of pytest.
run='import sys, cupy, pytest
from dflash.kernels.gpu import jit
macros, more = jit.macros, dict.fromkeys(sys.argv[1].split(), 1)
jit.macros = lambda constants: macros(constants | more)
cupy.cuda.set_allocator(None)
sys.exit(pytest.main(sys.argv[3:]))'

check() { # tool op
    local nodes=() log="$logs/$1-$2" begun=$SECONDS macro= said status
    while read -r node; do
        [[ $node != *"${CASES:-}"* ]] || nodes+=("tests/gpu/test_gpu_$2.py::$node")
    done <<< "${cases[$2]}"
    [ ${#nodes[@]} -gt 0 ] || { echo "no case of $2 contains '$CASES'"; return 2; }
    [ "$1" != racecheck ] || macro=EVERY_LANE_ARRIVES
    timeout "$limit" compute-sanitizer --tool "$1" --error-exitcode 99 --print-limit 20 "$python" -c "$run" "$macro" "$log" \
        -q -p no:benchmark -p no:cacheprovider "${nodes[@]}" > "$log" 2>&1
    status=$?
    # Warnings of racecheck are of threads of a warp that shuffles keep in order.
    [ "$status" != 124 ] || pkill -9 -f -- "$log"  # what it started goes on using the GPU
    if [ "$status" = 99 ] && grep -q "RACECHECK SUMMARY.*(0 errors," "$log" && ! grep -q "^FAILED" "$log"; then status=0; fi
    said=$(grep -E "ERROR SUMMARY|RACECHECK SUMMARY|Device not supported|not supported" "$log" | tail -1)
    printf '%-10s %-16s rc=%-3s %4ss  %s\n' "$1" "$2" "$status" $((SECONDS - begun)) "${said:-no summary}"
    return "$status"
}

[ $# -gt 0 ] || set -- "${!cases[@]}"
runs=() worst=0
for op in "$@"; do
    [ -n "${cases[$op]+x}" ] || { echo "no op $op: ${!cases[*]}"; exit 2; }
    for tool in $tools; do check "$tool" "$op" & runs+=($!); done
done
for run in "${runs[@]}"; do
    wait "$run"
    status=$?
    [ "$status" -le "$worst" ] || worst=$status
done
echo "logs: $logs"
exit "$worst"
