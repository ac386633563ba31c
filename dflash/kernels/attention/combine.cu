// Combine the splits of pending rows that `decode` has stored (split-KV). combine.cuh has the formula, grid and block.
//
// Macros: HEAD_DIM, GROUP_SIZE, KV_HEADS, the shape of the heads; MAX_SPLITS; GATED. Bytes: those of combine.cuh.
// In a tensor split PEERS, RANK and PEER_DATA, see signals.cuh: results go to all GPUs, with `signals` signals unless PEER_DATA.
#include "../gpu/include/pdl.cuh"
#include "split_kv.cuh"
#include "combine.cuh"

extern "C" __global__ void __launch_bounds__(256)
combine(const int* counts, const int* first, const int* sequence, const int* length, const float* gate,
        const float* partial, const float* stats, unsigned short* out, const unsigned long long* peers,
        unsigned long long signals) {
#if PEERS
    __shared__ PeerTable peer_table;
    load_peers(peer_table, peers);
    const PeerTable* const table = &peer_table;
    __syncthreads();  // the table is loaded
#else
    const PeerTable* const table = nullptr;
#endif
    const int row = blockIdx.z;
    int n_splits = 0;
    if (row < counts[0]) {
        const int s = sequence[row];
        n_splits = n_splits_of(length[s] + row - first[s]);
    }
    wait_on_dependent_grids();
    launch_dependent_grids();  // only now: faster than blocks of the next launch that load weights beside the attention
    if (n_splits > 0) combine_splits(n_splits, gate, partial, stats, out, table);
#if PEERS && !PEER_DATA
    const u32 block_number = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    signal_peers(peer_table, signals, block_number, gridDim.x * gridDim.y * gridDim.z);
#endif
}
