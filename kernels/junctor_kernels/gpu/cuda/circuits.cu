// Values of a circuit's nodes for a block of cases, and how they flow back to indicators: layer by layer, each a launch,
// an item of which is a node. A warp does it for 32 * WIDTH cases. Nodes gather from their children on the way up and from
// their parents on the way down, so that nothing is added by two warps and the same cases give the same bytes.
//
// In the source come first macros (DOUBLE) or none, the constants of `circuits.gpu` and `gpu.blocks`, then numbers.cu.

// Numbers of neighbouring cases.
struct alignas(16) Line {
    real at[WIDTH];
};

#define EACH_CASE _Pragma("unroll") for (int v = 0; v < WIDTH; v++)
#define CHUNK (32 * WIDTH)

// Pointers into device memory, in the order of `FIELDS`. `children` of sums and products; `parents` of each node: sums up
// to `products_at`, then products. `values` of all nodes, and `slopes` of all but leaves, are [chunk][node][CHUNK]: what a
// warp reads in turns shares pages. A slope is what a node hands on: of a sum its flow divided by its value, of a product
// its flow. `posteriors` are [leaf][cases].
struct Run {
    const int *items, *edges_at, *children, *parents_at, *products_at, *parents, *variables, *numbers, *soft;
    const unsigned char *is_sum;
    const real *weights, *shares;
    const short *states;
    const real *likelihoods;
    const index_t *rows;
    const int *targets, *sources;
    real *values, *slopes, *posteriors;
    double *found;
    void *answers;
    index_t cases, filled, nodes, leaves, asked, answered;
};

extern "C" {
__constant__ Run run;
}

__device__ __forceinline__ Line load(const real *at) { return *reinterpret_cast<const Line *>(at); }
__device__ __forceinline__ void store(real *at, const Line &line) { *reinterpret_cast<Line *>(at) = line; }

// What a warp does: a node, and where its lane has cases of it.
struct Task {
    int node;
    index_t chunk;
    int lane;

    __device__ __forceinline__ Task(int first)
        : node(run.items[first + (blockIdx.x * MANY_THREADS + threadIdx.x) / 32]), chunk(blockIdx.y),
          lane(threadIdx.x % 32 * WIDTH) {}

    __device__ __forceinline__ bool is_none() const { return node < 0 || first_case() - lane >= run.filled; }
    __device__ __forceinline__ index_t first_case() const { return chunk * CHUNK + lane; }
    __device__ __forceinline__ real *value(int of) const {
        return run.values + (chunk * run.nodes + of) * CHUNK + lane;
    }
    __device__ __forceinline__ real *slope(int of) const {
        return run.slopes + (chunk * (run.nodes - run.leaves) + of - run.leaves) * CHUNK + lane;
    }
    __device__ __forceinline__ void set(const Line &line) const {
        store(value(node), line);
        if (node == run.nodes - 1) EACH_CASE run.found[first_case() + v] = (double)line.at[v];
    }
};

// Indicators: 1 where the evidence allows a state, times its likelihood.
extern "C" __global__ void __launch_bounds__(MANY_THREADS) indicate(int first) {
    const Task task(first);
    if (task.is_none()) return;
    const int variable = run.variables[task.node], number = run.numbers[task.node], soft = run.soft[task.node];
    Line line;
    EACH_CASE line.at[v] = 1;
    if (variable >= 0) {
        const short *states = run.states + variable * run.cases + task.first_case();
        EACH_CASE line.at[v] = states[v] < 0 || states[v] == number ? 1 : 0;
    }
    if (soft >= 0) {
        const real *likelihoods = run.likelihoods + soft * run.cases + task.first_case();
        EACH_CASE line.at[v] *= likelihoods[v];
    }
    task.set(line);
}

extern "C" __global__ void __launch_bounds__(MANY_THREADS) add_and_multiply(int first) {
    const Task task(first);
    if (task.is_none()) return;
    const int begin = run.edges_at[task.node], end = run.edges_at[task.node + 1];
    Line total;
    if (run.is_sum[task.node]) {
        EACH_CASE total.at[v] = 0;
#pragma unroll 4
        for (int edge = begin; edge < end; edge++) {
            const Line child = load(task.value(run.children[edge]));
            const real weight = run.weights[edge];
            EACH_CASE total.at[v] += weight * child.at[v];
        }
    } else {
        EACH_CASE total.at[v] = 1;
#pragma unroll 4
        for (int edge = begin; edge < end; edge++) {
            const Line child = load(task.value(run.children[edge]));
            EACH_CASE total.at[v] *= child.at[v];
        }
    }
    task.set(total);
}

extern "C" __global__ void __launch_bounds__(MANY_THREADS) hand_down(int first) {
    const Task task(first);
    if (task.is_none()) return;
    const int node = task.node, products = run.products_at[node], end = run.parents_at[node + 1];
    const Line value = load(task.value(node));
    Line flow;
    // Everything flows from the root, the only node without parents.
    const bool is_root = node == run.nodes - 1;
    EACH_CASE flow.at[v] = 0;
#pragma unroll 4
    for (int edge = run.parents_at[node]; edge < products; edge++) {
        const Line slope = load(task.slope(run.parents[edge]));
        const real share = run.shares[edge];
        EACH_CASE flow.at[v] += share * slope.at[v];
    }
    EACH_CASE flow.at[v] = is_root ? value.at[v] : flow.at[v] * value.at[v];
#pragma unroll 4
    for (int edge = products; edge < end; edge++) {
        const Line slope = load(task.slope(run.parents[edge]));
        EACH_CASE flow.at[v] += slope.at[v];
    }
    if (node < run.leaves) {
        const double *found = run.found + task.first_case();
        EACH_CASE flow.at[v] /= (real)found[v];
        store(run.posteriors + node * run.cases + task.first_case(), flow);
        return;
    }
    if (run.is_sum[node]) EACH_CASE flow.at[v] = value.at[v] > 0 ? flow.at[v] / value.at[v] : 0;
    store(task.slope(node), flow);
}

// its: the record of the block itself, because `run` is that of the next one by now. A target has its states in `targets`,
// those of all targets before, and where its states begin in `sources`: the leaf of each, -1 for impossible ones.
template <class Number> __device__ __forceinline__ void write_posteriors(const Run *its) {
    const int pieces = (int)((its->filled + WRITE_CASES - 1) / WRITE_CASES);
    for (int piece = blockIdx.x; piece < its->asked * pieces; piece += gridDim.x) {
        const int *target = its->targets + TARGET_COLUMNS * (piece / pieces);
        const int size = target[0], first = piece % pieces * WRITE_CASES, *sources = its->sources + target[2];
        const int cases = its->filled - first < WRITE_CASES ? (int)its->filled - first : WRITE_CASES;
        const index_t *rows = its->rows + first;
        const real *posteriors = its->posteriors + first;
        Number *out = static_cast<Number *>(its->answers) + target[1] * its->answered;
        // Whole lines of the bus for every warp, wherever rows follow each other.
        const int shift = (int)((size_t)(out + rows[0] * size) / sizeof(Number) % 32);
#pragma unroll 4
        for (int k = (int)threadIdx.x - shift; k < cases * size; k += blockDim.x) {
            if (k < 0) continue;
            const int b = k / size, e = k % size;
            out[rows[b] * size + e] = sources[e] < 0 ? 0 : (Number)posteriors[sources[e] * its->cases + b];
        }
    }
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, WRITE_SHARE) write_single(const Run *its) {
    write_posteriors<float>(its);
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, WRITE_SHARE) write_double(const Run *its) {
    write_posteriors<double>(its);
}
