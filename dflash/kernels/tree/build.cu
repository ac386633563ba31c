// Build the draft tree of a given size with the highest total probability from the candidates of a block; reference.py has
// the definition. The tree starts as the chain of the best candidates. Then the most probable node outside the tree is added
// until the tree is full.
//
// A warp builds the tree of one sequence. Grid (sequences), block 32, shared memory about 20 KiB (static). Bytes: a few KiB.
// Macros: POOL, candidates of a row; EDGES, 1 if the score of a candidate depends on its parent: then `scores` is (rows,
// POOL, POOL), else (rows, POOL). Without EDGES the candidates that the tree can use are first copied to shared memory.
//
// `outlines`: first row, depth, candidates a position and nodes of each tree. `apart`: rows from one position to the
// next. `targets`, if not null, maps draft tokens to target tokens. `reach`, if not null, is the number of positions
// of each sequence that have candidates. `grown`: nodes that hold a candidate.
// If candidates run out, the remaining nodes are padding. A tree with at most as many nodes as positions (a chain) is padded
// with token 0. Any other tree is padded with copies of its first token below the root, which are never accepted.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/types.cuh"

#if !defined(POOL) || !defined(EDGES)
#error "POOL and EDGES must be defined"
#endif

constexpr int MAX_NODES = 64, MAX_OPEN = 3 * MAX_NODES, SMEM_CANDIDATES = EDGES ? 1 : 2048;
constexpr unsigned ALL = ~0u;

struct TreeShape {
    int first, depth, n_candidates, nodes, position_stride;

    __device__ size_t row(int t) const { return first + (size_t)t * position_stride; }
};

// Candidates of a sequence. Those of position t begin at `t * pitch` if they are in shared memory, else (`pitch` 0) at the
// row that the tree's shape gives.
struct Pool {
    const int* ids;
    const float* scores;
    int pitch;

    __device__ __forceinline__ size_t offset(const TreeShape& shape, int t) const {
        return pitch ? (size_t)t * pitch : shape.row(t) * POOL;
    }
};

struct Child {
    float score;
    int candidate;  // index within the position; -1 if there is none
};

// Nodes of the tree, and open nodes: those that may be added next, each a child or the next sibling of a node in the tree.
// Weights are the log probabilities of the path from the root to the node.
struct Tree {
    double weights[MAX_NODES], open_weights[MAX_OPEN];
    short parents[MAX_NODES], depths[MAX_NODES], candidate[MAX_NODES];
    short open_parents[MAX_OPEN], open_candidate[MAX_OPEN];
    float open_scores[MAX_OPEN];
    int n, n_open;
};

// True if candidate i with score a precedes candidate j with score b: the larger score first, then the smaller index.
__device__ __forceinline__ bool precedes(float a, int i, float b, int j) { return a > b || (a == b && i < j); }

// The best candidate at position t below `parent_candidate`, among those after `last` if that is a candidate.
__device__ __forceinline__ Child next_child(const Pool& pool, const TreeShape& shape, int t, int parent_candidate,
                                            Child last) {
    const float minus_infinity = __int_as_float(0xff800000);
    if (t >= shape.depth) return {minus_infinity, -1};
    const int* ids = pool.ids + pool.offset(shape, t);
    if (!EDGES) {
        const int j = last.candidate + 1;
        const float score = j < shape.n_candidates ? pool.scores[pool.offset(shape, t) + j] : minus_infinity;
        return score > minus_infinity && ids[j] >= 0 ? Child{score, j} : Child{minus_infinity, -1};
    }
    const float* scores = pool.scores + (shape.row(t) * POOL + parent_candidate) * POOL;
    Child best{minus_infinity, POOL};
    for (int j = threadIdx.x; j < shape.n_candidates; j += 32) {
        const bool follows = last.candidate < 0 || precedes(last.score, last.candidate, scores[j], j);
        if (follows && ids[j] >= 0 && scores[j] > minus_infinity && precedes(scores[j], j, best.score, best.candidate))
            best = {scores[j], j};
    }
    UNROLL for (int i = 16; i; i /= 2) {
        const float score = __shfl_xor_sync(ALL, best.score, i);
        const int candidate = __shfl_xor_sync(ALL, best.candidate, i);
        if (precedes(score, candidate, best.score, best.candidate)) best = {score, candidate};
    }
    return best.score > minus_infinity ? best : Child{minus_infinity, -1};
}

// Add `child` of node `parent` (-1: the root) to the open nodes.
__device__ __forceinline__ void push_open(Tree& tree, int parent, Child child) {
    if (child.candidate < 0) return;
    __syncwarp();
    if (threadIdx.x == 0) {
        const int i = tree.n_open;
        tree.open_weights[i] = __dadd_rn(parent < 0 ? 0.0 : tree.weights[parent], (double)child.score);
        tree.open_parents[i] = parent, tree.open_candidate[i] = child.candidate, tree.open_scores[i] = child.score;
        tree.n_open = i + 1;
    }
    __syncwarp();
}

// Move the open node with the largest weight into the tree; of equal weights the one opened first. Returns its index among
// the open nodes, or -1 if there is none.
__device__ __forceinline__ int take_best(Tree& tree) {
    const double minus_infinity = __longlong_as_double(0xfff0000000000000ll);
    double best = minus_infinity;
    int index = MAX_OPEN;
    for (int i = threadIdx.x; i < tree.n_open; i += 32) {
        if (tree.open_weights[i] > best) best = tree.open_weights[i], index = i;
    }
    UNROLL for (int i = 16; i; i /= 2) {
        const double other = __shfl_xor_sync(ALL, best, i);
        const int other_index = __shfl_xor_sync(ALL, index, i);
        if (other > best || (other == best && other_index < index)) best = other, index = other_index;
    }
    if (index == MAX_OPEN) return -1;
    __syncwarp();
    if (threadIdx.x == 0) {
        const int i = tree.n, parent = tree.open_parents[index];
        tree.weights[i] = best, tree.parents[i] = parent, tree.candidate[i] = tree.open_candidate[index];
        tree.depths[i] = parent < 0 ? 1 : tree.depths[parent] + 1;
        tree.open_weights[index] = minus_infinity, tree.n = i + 1;
    }
    __syncwarp();
    return index;
}

// Copy the candidates that the tree can use to shared memory if they fit.
__device__ __forceinline__ Pool stage_candidates(const int* ids, const float* scores, const TreeShape& shape, int* smem_ids,
                                                 float* smem_scores) {
    if constexpr (!EDGES) {
        const int used = max(shape.n_candidates, 1);
        if (shape.depth * used <= SMEM_CANDIDATES) {
            for (int i = threadIdx.x; i < shape.depth * used; i += 32) {
                const size_t from = shape.row(i / used) * POOL + i % used;
                smem_ids[i] = ids[from], smem_scores[i] = scores[from];
            }
            __syncwarp();  // all candidates are stored
            return {smem_ids, smem_scores, used};
        }
    }
    return {ids, scores, 0};
}

// Start the tree with the chain of each position's best candidate, as far as there are candidates. Only without EDGES:
// scores do not depend on the parent.
__device__ __forceinline__ void take_chain(Tree& tree, const Pool& pool, const TreeShape& shape) {
    const double minus_infinity = __longlong_as_double(0xfff0000000000000ll);
    const int lane = threadIdx.x, max_length = min(shape.depth, shape.nodes);
    double weight = 0.0;
    int n = 0;
    for (int start = 0; start < max_length && n == start; start += 32) {
        const int t = start + lane;
        const size_t offset = t < max_length ? pool.offset(shape, t) : 0;
        const bool usable = t < max_length && pool.scores[offset] > __int_as_float(0xff800000) && pool.ids[offset] >= 0;
        const float score = usable ? pool.scores[offset] : 0.0f;
        const unsigned missing = ~__ballot_sync(ALL, usable);
        const int found = missing ? __ffs(missing) - 1 : 32;
        double path_score = 0.0;
        for (int i = 0; i < found; ++i) {
            weight = __dadd_rn(weight, (double)__shfl_sync(ALL, score, i));
            if (i == lane) path_score = weight;
        }
        if (lane < found) {
            tree.weights[t] = path_score, tree.parents[t] = t - 1, tree.candidate[t] = 0, tree.depths[t] = t + 1;
            tree.open_weights[t] = minus_infinity, tree.open_scores[t] = score;
        }
        n = start + found;
    }
    if (lane == 0) tree.n = tree.n_open = n;
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32)
build(const int* ids, const float* scores, const int* outlines, int apart, const int* targets,
      const int* reach, int* tokens, int* parents, int* depths, int* grown) {
    __shared__ Tree tree;
    __shared__ int smem_ids[SMEM_CANDIDATES];
    __shared__ float smem_scores[SMEM_CANDIDATES];
    launch_dependent_grids();
    outlines += 4 * blockIdx.x;
    TreeShape shape{outlines[0], outlines[1], outlines[2], outlines[3], apart};
    const bool is_chain = shape.nodes <= shape.depth;
    const Child none{0.0f, -1};
    if (threadIdx.x == 0) tree.n = tree.n_open = 0;
    __syncwarp();
    wait_on_dependent_grids();
    if (reach) shape.depth = min(shape.depth, reach[blockIdx.x]);
    const Pool pool = stage_candidates(ids, scores, shape, smem_ids, smem_scores);
    const auto first_child = [&](int node) {
        return next_child(pool, shape, node < 0 ? 0 : tree.depths[node], node < 0 ? 0 : tree.candidate[node], none);
    };
    if constexpr (EDGES) {
        while (tree.n < shape.nodes) {
            push_open(tree, tree.n - 1, first_child(tree.n - 1));
            if (take_best(tree) < 0) break;
        }
    } else {
        take_chain(tree, pool, shape);
    }
    const int chain = tree.n;
    for (int node = 0; node < chain && chain < shape.nodes; ++node) {
        const int parent = node - 1, t = node, parent_candidate = parent < 0 ? 0 : tree.candidate[parent];
        const Child last{tree.open_scores[node], tree.candidate[node]};
        push_open(tree, parent, next_child(pool, shape, t, parent_candidate, last));
    }
    while (tree.n < shape.nodes) {
        const int index = take_best(tree);
        if (index < 0) break;
        const int parent = tree.open_parents[index];
        const Child last{tree.open_scores[index], tree.open_candidate[index]};
        push_open(
            tree, parent,
            next_child(pool, shape, parent < 0 ? 0 : tree.depths[parent], parent < 0 ? 0 : tree.candidate[parent], last));
        push_open(tree, tree.n - 1, first_child(tree.n - 1));
    }
    const size_t first_out = (size_t)blockIdx.x * MAX_NODES;
    const int n = tree.n;
    for (int i = threadIdx.x; i < shape.nodes; i += 32) {
        const bool is_candidate = i < n, extends_chain = !is_candidate && is_chain;
        const int node = is_candidate ? i : 0;
        const int token =
            n > 0 && !extends_chain ? pool.ids[pool.offset(shape, tree.depths[node] - 1) + tree.candidate[node]] : -1;
        tokens[first_out + i] = token < 0 ? 0 : targets ? targets[token] : token;
        parents[first_out + i] = is_candidate ? tree.parents[i] : extends_chain ? i - 1 : -1;
        depths[first_out + i] = is_candidate ? tree.depths[i] : extends_chain ? i + 1 : 1;
    }
    if (threadIdx.x == 0) grown[blockIdx.x] = n;
}
