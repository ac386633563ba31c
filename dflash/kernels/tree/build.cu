// Build the draft tree of given size with the highest total probability from the candidates of a block, see reference.py: first the
// chain of the best candidates, then the likeliest node that is not in the tree yet, until the tree is full.
//
// A warp has a sequence. Grid sequences, block 32. Macros: POOL, candidates of a row; EDGES, whether the score of a candidate depends
// on its parent: then `scores` are (rows, POOL, POOL). `outlines`: first row, depth, candidates, nodes of each tree; consecutive
// positions are `apart` rows apart. Without EDGES the candidates that can be used are copied to shared memory first.
// Without enough candidates a tree of no more nodes than positions, a chain, is filled with token 0, any other with its first token,
// which is never accepted. `targets`, if given, maps draft tokens to target tokens; `reach`, if given, is the number of positions of
// each sequence that have candidates. `grown`: nodes that are candidates. Bytes: some KiB.
#include "../gpu/include/pdl.cuh"

#if !defined(POOL) || !defined(EDGES)
#error "POOL and EDGES must be defined"
#endif

constexpr int MAX_NODES = 64, MAX_OPEN = 3 * MAX_NODES, NEAR = EDGES ? 1 : 2048;
constexpr unsigned ALL = ~0u;

struct TreeShape {
    int first, depth, width, nodes, apart;

    __device__ size_t row(int t) const { return first + (size_t)t * apart; }
};

// Candidates of position t begin at `t * pitch` if they are near, else where the outline says.
struct Pool {
    const int* ids;
    const float* scores;
    int pitch;

    __device__ __forceinline__ size_t at(const TreeShape& of, int t) const {
        return pitch ? (size_t)t * pitch : of.row(t) * POOL;
    }
};

struct Child {
    float score;
    int which;  // -1: there is none
};

// Nodes of the tree, and those that may come next: below or beside a node.
struct Tree {
    double weights[MAX_NODES], open_weights[MAX_OPEN];
    short parents[MAX_NODES], depths[MAX_NODES], which[MAX_NODES];
    short open_parents[MAX_OPEN], open_which[MAX_OPEN];
    float open_scores[MAX_OPEN];
    int n, n_open;
};

// True if candidate i with score a precedes candidate j with score b: the larger score, then the smaller number.
__device__ __forceinline__ bool ahead(float a, int i, float b, int j) { return a > b || (a == b && i < j); }

// The best candidate at position t under `above`, of those that come after `last` if that is one.
__device__ __forceinline__ Child next_child(const Pool& pool, const TreeShape& of, int t, int above, Child last) {
    const float nothing = __int_as_float(0xff800000);
    if (t >= of.depth) return {nothing, -1};
    const int* ids = pool.ids + pool.at(of, t);
    if (!EDGES) {
        const int j = last.which + 1;
        const float score = j < of.width ? pool.scores[pool.at(of, t) + j] : nothing;
        return score > nothing && ids[j] >= 0 ? Child{score, j} : Child{nothing, -1};
    }
    const float* scores = pool.scores + (of.row(t) * POOL + above) * POOL;
    Child best{nothing, POOL};
    for (int j = threadIdx.x; j < of.width; j += 32) {
        const bool follows = last.which < 0 || ahead(last.score, last.which, scores[j], j);
        if (follows && ids[j] >= 0 && scores[j] > nothing && ahead(scores[j], j, best.score, best.which)) best = {scores[j], j};
    }
#pragma unroll
    for (int i = 16; i; i /= 2) {
        const float score = __shfl_xor_sync(ALL, best.score, i);
        const int which = __shfl_xor_sync(ALL, best.which, i);
        if (ahead(score, which, best.score, best.which)) best = {score, which};
    }
    return best.score > nothing ? best : Child{nothing, -1};
}

__device__ __forceinline__ void open(Tree& tree, int parent, Child child) {
    if (child.which < 0) return;
    __syncwarp();
    if (threadIdx.x == 0) {
        const int i = tree.n_open;
        tree.open_weights[i] = __dadd_rn(parent < 0 ? 0.0 : tree.weights[parent], (double)child.score);
        tree.open_parents[i] = parent, tree.open_which[i] = child.which, tree.open_scores[i] = child.score;
        tree.n_open = i + 1;
    }
    __syncwarp();
}

// Take the likeliest open node, of equals the one that came first, into the tree; the place it was at, or -1.
__device__ __forceinline__ int take_best(Tree& tree) {
    const double nothing = __longlong_as_double(0xfff0000000000000ll);
    double best = nothing;
    int where = MAX_OPEN;
    for (int i = threadIdx.x; i < tree.n_open; i += 32) {
        if (tree.open_weights[i] > best) best = tree.open_weights[i], where = i;
    }
#pragma unroll
    for (int i = 16; i; i /= 2) {
        const double other = __shfl_xor_sync(ALL, best, i);
        const int its = __shfl_xor_sync(ALL, where, i);
        if (other > best || (other == best && its < where)) best = other, where = its;
    }
    if (where == MAX_OPEN) return -1;
    __syncwarp();
    if (threadIdx.x == 0) {
        const int i = tree.n, parent = tree.open_parents[where];
        tree.weights[i] = best, tree.parents[i] = parent, tree.which[i] = tree.open_which[where];
        tree.depths[i] = parent < 0 ? 1 : tree.depths[parent] + 1;
        tree.open_weights[where] = nothing, tree.n = i + 1;
    }
    __syncwarp();
    return where;
}

// Bring what can be used of the candidates.
__device__ __forceinline__ Pool brought(const int* ids, const float* scores, const TreeShape& of, int* near_ids,
                                        float* near_scores) {
    if constexpr (!EDGES) {
        const int used = max(of.width, 1);
        if (of.depth * used <= NEAR) {
            for (int i = threadIdx.x; i < of.depth * used; i += 32) {
                const size_t from = of.row(i / used) * POOL + i % used;
                near_ids[i] = ids[from], near_scores[i] = scores[from];
            }
            __syncwarp();
            return {near_ids, near_scores, used};
        }
    }
    return {ids, scores, 0};
}

// The chain of the likeliest, where no score depends on the candidate above: the first of each position as far as there is one.
__device__ __forceinline__ void take_chain(Tree& tree, const Pool& pool, const TreeShape& of) {
    const double nothing = __longlong_as_double(0xfff0000000000000ll);
    const int lane = threadIdx.x, most = min(of.depth, of.nodes);
    double weight = 0.0;
    int n = 0;
    for (int start = 0; start < most && n == start; start += 32) {
        const int t = start + lane;
        const size_t at = t < most ? pool.at(of, t) : 0;
        const bool is_there = t < most && pool.scores[at] > __int_as_float(0xff800000) && pool.ids[at] >= 0;
        const float score = is_there ? pool.scores[at] : 0.0f;
        const unsigned missing = ~__ballot_sync(ALL, is_there);
        const int found = missing ? __ffs(missing) - 1 : 32;
        double own = 0.0;
        for (int i = 0; i < found; ++i) {
            weight = __dadd_rn(weight, (double)__shfl_sync(ALL, score, i));
            if (i == lane) own = weight;
        }
        if (lane < found) {
            tree.weights[t] = own, tree.parents[t] = t - 1, tree.which[t] = 0, tree.depths[t] = t + 1;
            tree.open_weights[t] = nothing, tree.open_scores[t] = score;
        }
        n = start + found;
    }
    if (lane == 0) tree.n = tree.n_open = n;
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32)
build(const int* ids, const float* scores, const int* outlines, int apart, const int* targets, const int* reach,
      int* tokens, int* parents, int* depths, int* grown) {
    __shared__ Tree tree;
    __shared__ int near_ids[NEAR];
    __shared__ float near_scores[NEAR];
    launch_dependent_grids();
    outlines += 4 * blockIdx.x;
    TreeShape of{outlines[0], outlines[1], outlines[2], outlines[3], apart};
    const bool is_chain = of.nodes <= of.depth;
    const Child none{0.0f, -1};
    if (threadIdx.x == 0) tree.n = tree.n_open = 0;
    __syncwarp();
    wait_on_dependent_grids();
    if (reach) of.depth = min(of.depth, reach[blockIdx.x]);
    const Pool pool = brought(ids, scores, of, near_ids, near_scores);
    const auto below = [&](int node) {
        return next_child(pool, of, node < 0 ? 0 : tree.depths[node], node < 0 ? 0 : tree.which[node], none);
    };
    if constexpr (EDGES) {
        while (tree.n < of.nodes) {
            open(tree, tree.n - 1, below(tree.n - 1));
            if (take_best(tree) < 0) break;
        }
    } else {
        take_chain(tree, pool, of);
    }
    const int chain = tree.n;
    for (int node = 0; node < chain && chain < of.nodes; ++node) {
        const int parent = node - 1, t = node, above = parent < 0 ? 0 : tree.which[parent];
        const Child own{tree.open_scores[node], tree.which[node]};
        open(tree, parent, next_child(pool, of, t, above, own));
    }
    while (tree.n < of.nodes) {
        const int at = take_best(tree);
        if (at < 0) break;
        const int parent = tree.open_parents[at];
        const Child own{tree.open_scores[at], tree.open_which[at]};
        open(tree, parent,
             next_child(pool, of, parent < 0 ? 0 : tree.depths[parent], parent < 0 ? 0 : tree.which[parent], own));
        open(tree, tree.n - 1, below(tree.n - 1));
    }
    const size_t to = (size_t)blockIdx.x * MAX_NODES;
    const int n = tree.n;
    for (int i = threadIdx.x; i < of.nodes; i += 32) {
        const bool real = i < n, goes_on = !real && is_chain;
        const int node = real ? i : 0;
        const int token = n > 0 && !goes_on ? pool.ids[pool.at(of, tree.depths[node] - 1) + tree.which[node]] : -1;
        tokens[to + i] = token < 0 ? 0 : targets ? targets[token] : token;
        parents[to + i] = real ? tree.parents[i] : goes_on ? i - 1 : -1;
        depths[to + i] = real ? tree.depths[i] : goes_on ? i + 1 : 1;
    }
    if (threadIdx.x == 0) grown[blockIdx.x] = n;
}
