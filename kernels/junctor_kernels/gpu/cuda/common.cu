// Sum-product propagation on a GPU: the steps of a plan, lowered to flat arrays (`junctor_kernels.layout`), walked through
// stage by stage. What is in a stage is independent, so it is one launch (or two beside each other). Its work is cut into
// items:
//
//     many.cu      contract_many, rest_many: a warp does an item for 32 * WIDTH cases; trace_many, trace_some.
//     few.cu       propagate_few: a thread block does an item for all of the (few) cases; trace_few.
//     tables.cu    what both do beside contractions: evidence, bounds, posteriors.
//     traceback.cu what both do for explanations.
//     answers.cu   write_single, write_double: the way out, beside the next block.
//     scores.cu    score_single, score_double: the same for scores.
//     states.cu    write_states: the same for explanations.
//
// Each line that names kernels is a module of its own (`blocks.py`), which a run compiles when it needs it. Kernels that
// read `run` and are launched for one block are in one module: each module has its own.
//
// Messages are stored as they are summed. What they have to be multiplied with so that their largest entry is in
// [0.5, 1) is a power of two that follows from the bits of that entry; whoever reads a row multiplies. In log space the
// whole number next to that entry is subtracted (algebra.cu), and nothing is ever lost; few.cu does all sums of logarithms.
//
// In the source come first macros (DOUBLE, LOGS, MAXIMA) or none, then the constants of `bytecode.py` and `blocks.py` as an
// enum, then numbers.cu.

// Numbers of V neighbouring cases.
template <int V, class T = real> struct alignas(V * sizeof(T) <= 16 ? V * sizeof(T) : 16) Lanes {
    T at[V];
};

typedef Lanes<WIDTH> Line;

#define EACH_CASE _Pragma("unroll") for (int v = 0; v < V; v++)

// Pointers into device memory, 8 bytes each, in the order of `junctor_kernels.gpu.FIELDS`; copied here before the launches
// of a block, because constants are read without a way to memory. `smallest` holds complements, so that all extremes begin
// as zeros and only grow. `cases` are lanes; the last of them beyond the `filled` ones repeat a case.
struct Run {
    const int *steps, *parents, *operands, *offsets, *span, *terms, *observed, *closing, *items;
    const real *columns, *shared;
    const double *scales, *leasts, *growth;
    const short *states;
    const double *likelihoods;
    const index_t *rows;
    const int *targets;
    const real *settled;
    real *arena, *lost, *open, *least;
    double *scale;
    word *largest, *smallest, *lossy;
    real *posteriors;
    double *parts, *found;
    const double *fixed;
    void *answers;
    const int *choices;
    int *best;
    void *probabilities, *entropies, *chosen;
    const int *trace, *traced, *variables, *seen;
    short *explained;
    index_t cases, totals, closings, filled, asked, answered, top, choosing, arena_rows, trace_count, seen_count;
};

extern "C" {
__constant__ Run run;
}

template <int V, class T> __device__ __forceinline__ Lanes<V, T> load(const T *at) {
    return *reinterpret_cast<const Lanes<V, T> *>(at);
}

template <int V, class T> __device__ __forceinline__ void store(T *at, const Lanes<V, T> &lanes) {
    *reinterpret_cast<Lanes<V, T> *>(at) = lanes;
}

// From one row of the arena to the next. Where there are many cases all rows of a warp's cases lie side by side, so that
// what a warp reads in turns shares pages; a few cases are one piece.
template <int V> __device__ __forceinline__ index_t row_length() { return V == 1 ? run.cases : 32 * V; }

// Where the first row of the arena has case b.
template <int V> __device__ __forceinline__ real *first_row(index_t b) {
    if (V == 1) return run.arena + b;
    return run.arena + b / (32 * V) * run.arena_rows * (32 * V) + b % (32 * V);
}
