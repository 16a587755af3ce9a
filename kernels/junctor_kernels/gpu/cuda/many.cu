// Many cases: a warp does an item for 32 * WIDTH of them, the case axis innermost. Loads and stores of rows are 128 bits
// a lane, offsets and entries of factors the same for a whole warp. Before the source comes EVERY_TILE, the tiles that
// contractions may have, each as TILES(lines, entries of a line): half a second or more of a compiler each.

// Terms of which a loop has the code side by side; exponentials are long enough by themselves, and take long to compile.
#ifdef SUMS_ARE_PLAIN
enum { TILE_TERMS = 1, PRODUCT_TERMS = 1 };
#else
enum { TILE_TERMS = 2, PRODUCT_TERMS = 4 };
#endif

// A row of an operand, which an earlier stage made, by a load of its own kind: those of the compiler's choice take a fifth
// longer.
__device__ __forceinline__ Line row_at(const real *at) {
    static_assert(sizeof(Line) == sizeof(float4), "what a lane reads at once");
    union {
        float4 bits;
        Line line;
    } row;
    row.bits = __ldcg(reinterpret_cast<const float4 *>(at));
    return row.line;
}

__device__ __forceinline__ Line filled(real number) {
    const int V = WIDTH;
    Line line;
    EACH_CASE line.at[v] = number;
    return line;
}

// The largest entries of some cases, and the smallest above zero, which says what products can have lost.
struct Extremes {
    static const int V = WIDTH;
    Line most, least;

    __device__ __forceinline__ Extremes() : most(filled(EMPTY_SUM)) { EACH_CASE least.at[v] = number(INFINITE); }

    __device__ __forceinline__ void see(const Line &line) {
        EACH_CASE {
            const real x = line.at[v];
            most.at[v] = x > most.at[v] ? x : most.at[v];
            least.at[v] = x > 0 && x < least.at[v] ? x : least.at[v];
        }
    }

    // Most tiles change neither extreme, and looking is cheaper than an atomic operation.
    __device__ __forceinline__ void record(int slot, index_t b) const {
        word *largest = run.largest + slot * run.cases + b;
        const Lanes<V, word> high = load<V>(largest);
        EACH_CASE if (rank(most.at[v]) > high.at[v]) atomicMax(largest + v, rank(most.at[v]));
        if (LOSSLESS) return;
        word *smallest = run.smallest + slot * run.cases + b;
        const Lanes<V, word> low = load<V>(smallest);
        EACH_CASE if (~bits_of(least.at[v]) > low.at[v]) atomicMax(smallest + v, ~bits_of(least.at[v]));
    }
};

// The terms of one tile that a warp sums: RUN at a time, then those of all warps that share the tile, and so on. What is
// summed joins the entry in memory, so that rounding grows with RUN plus R over RUN, not with R.
struct Share {
    int warp, warps;
    Line *meeting;

    __device__ __forceinline__ bool leads() const { return warp == 0; }

    // Add up what the warps have summed of one entry; the sum is complete in the first of them.
    __device__ __forceinline__ void join(Line &sum) const {
        const int V = WIDTH;
        if (warps == 1) return;
        __syncthreads();
        meeting[threadIdx.x] = sum;
        __syncthreads();
        if (!leads()) return;
        for (int other = 1; other < warps; other++)
            EACH_CASE sum.at[v] = joined(sum.at[v], meeting[32 * other + threadIdx.x % 32].at[v]);
    }

    // Bring the sum of a round to its entry. in_logs: returns the whole sum of a case, for those of which plain numbers
    // are not sure.
    template <typename InLogs>
    __device__ __forceinline__ void settle(
        real *entry, Line sum, bool again, bool last, Extremes &extremes, const InLogs &in_logs) const {
        const int V = WIDTH;
        join(sum);
        if (!leads()) return;
        if (again) {
            const Line before = load<V>(entry);
            EACH_CASE sum.at[v] = joined(sum.at[v], before.at[v]);
        }
#ifdef SUMS_ARE_PLAIN
        if (last) EACH_CASE sum.at[v] = is_sure(sum.at[v]) ? log(sum.at[v]) : in_logs(v);
#endif
        store(entry, sum);
        if (last) extremes.see(sum);
    }
};

// Tiles of NI x NJ kept entries: NI of them tell rows x apart, NJ those of y, which is a factor or (PAIR) rows as well.
template <int NI, int NJ, bool PAIR>
__device__ __forceinline__ void contract_tiles(
    const int *step, int first, int last, index_t b, const Share &share) {
    const int V = WIDTH;
    const int *operands = run.operands + 3 * step[FIRST], *x_terms = run.offsets + operands[4];
    const int *y_operand = operands + (PAIR ? 6 : 0), *y_terms = run.offsets + y_operand[1];
    const int *x_kept = run.offsets + operands[3], *y_kept = run.offsets + y_operand[0], *out = run.offsets + step[OUT];
    const bool listed = step[STRIDE];
    real *arena = first_row<V>(b);
    Line x_by = scaling_of<V>(operands[5], b), y_by;
    if (PAIR) y_by = scaling_of<V>(operands[8], b);
    Extremes extremes;
    for (int t = first; t < last; t++) {
        const int *span = run.span + step[SPAN] + t * step[STRIDE];
        const int begin = span[0], end = span[1];
        int x_at[NI], y_at[NJ];
#pragma unroll
        for (int i = 0; i < NI; i++) x_at[i] = x_kept[(t * NI + i) * NJ];
#pragma unroll
        for (int j = 0; j < NJ; j++) y_at[j] = y_kept[t * NI * NJ + j];
        int round = begin;
        do {
            Line sums[NI][NJ];
#pragma unroll
            for (int n = 0; n < NI * NJ; n++) sums[n / NJ][n % NJ] = filled(NO_TERMS);
            const int start = round + share.warp * RUN, stop = start + RUN < end ? start + RUN : end;
#pragma unroll(TILE_TERMS)
            for (int n = start; n < stop; n++) {
                const int r = listed ? run.terms[n] : n, x_term = x_terms[r], y_term = y_terms[r];
                Line x[NI];
#pragma unroll
                for (int i = 0; i < NI; i++) x[i] = row_at(arena + (index_t)(x_at[i] + x_term) * row_length<V>());
#pragma unroll
                for (int i = 0; i < NI; i++) {
                    multiply(x[i], x_by);
                    if (PAIR) multiply(x[i], y_by);
                }
#pragma unroll
                for (int j = 0; j < NJ; j++) {
                    Line y;
                    if (PAIR) y = row_at(arena + (index_t)(y_at[j] + y_term) * row_length<V>());
                    else y.at[0] = run.shared[y_at[j] + y_term];
#pragma unroll
                    for (int i = 0; i < NI; i++)
                        EACH_CASE sums[i][j].at[v] = with_product(sums[i][j].at[v], x[i].at[v], y.at[PAIR ? v : 0]);
                }
            }
            const bool again = round > begin;
            round += share.warps * RUN;
            // Out of the registers, so that what follows is there once and not for every entry.
            Line summed[NI * NJ];
#pragma unroll
            for (int i = 0; i < NI; i++)
#pragma unroll
                for (int j = 0; j < NJ; j++) summed[i * NJ + j] = sums[i][j];
#pragma unroll 1
            for (int n = 0; n < NI * NJ; n++) {
                const int *at = out + t * NI * NJ + n;
                // Where a tile is not full its last entries are repeated; a sum must join them once.
                if ((n >= NJ && at[0] == at[-NJ]) || (n % NJ && at[0] == at[-1])) continue;
                const int x_row = x_at[n / NJ], y_row = y_at[n % NJ];
                const auto in_logs = [&](int v) {
                    Sum whole;
                    for (int term = begin; term < end; term++) {
                        const int r = listed ? run.terms[term] : term, y_entry = y_row + y_terms[r];
                        real x = combine(arena[(index_t)(x_row + x_terms[r]) * row_length<V>() + v], x_by.at[v]);
                        if (PAIR) x = combine(x, combine(arena[(index_t)y_entry * row_length<V>() + v], y_by.at[v]));
                        else x = combine(x, run.shared[y_entry]);
                        whole.add(x);
                    }
                    return whole.value();
                };
                share.settle(arena + (index_t)*at * row_length<V>(), summed[n], again, round >= end, extremes, in_logs);
            }
        } while (round < end);
    }
    if (share.leads()) extremes.record(step[SLOT], b);
}

// Kept entries one by one. K: the number of operands where it is known to the compiler, else 0.
template <int K>
__device__ __forceinline__ void contract_products(
    const int *step, int first, int last, index_t b, const Share &share) {
    const int V = WIDTH;
    const int *operands = run.operands + 3 * step[FIRST], *out = run.offsets + step[OUT];
    const int count = K ? K : step[COUNT];
    const bool scaled = operands[0] >= 0, listed = step[STRIDE];
    const int *f_kept = run.offsets + (scaled ? operands[0] : 0), *f_terms = run.offsets + (scaled ? operands[1] : 0);
    const int *x_kept = run.offsets + operands[3], *x_terms = run.offsets + operands[4];
    const Line x_by = scaling_of<V>(operands[5], b);
    Line y_by[K > 2 ? K - 2 : 1];
#pragma unroll
    for (int k = 2; k < K; k++) y_by[k - 2] = scaling_of<V>(operands[3 * k + 2], b);
    real *arena = first_row<V>(b);
    Extremes extremes;
    for (int s = first; s < last; s++) {
        const int *span = run.span + step[SPAN] + s * step[STRIDE];
        const int begin = span[0], end = span[1], f_at = scaled ? f_kept[s] : 0, x_at = x_kept[s];
        int round = begin;
        do {
            Line sum = filled(NO_TERMS);
            const int start = round + share.warp * RUN, stop = start + RUN < end ? start + RUN : end;
#pragma unroll(PRODUCT_TERMS)
            for (int n = start; n < stop; n++) {
                const int r = listed ? run.terms[n] : n;
                Line x = row_at(arena + (index_t)(x_at + x_terms[r]) * row_length<V>());
                multiply(x, x_by);
                if (scaled) {
                    const real f = run.shared[f_at + f_terms[r]];
                    EACH_CASE x.at[v] = combine(x.at[v], f);
                }
#pragma unroll
                for (int k = 2; k < count; k++) {
                    const int *other = operands + 3 * k;
                    const index_t row = run.offsets[other[0] + s] + run.offsets[other[1] + r];
                    Line y = row_at(arena + row * row_length<V>());
                    multiply(y, K ? y_by[k - 2] : scaling_of<V>(other[2], b));
                    multiply(x, y);
                }
                EACH_CASE sum.at[v] = with_term(sum.at[v], x.at[v]);
            }
            const bool again = round > begin;
            round += share.warps * RUN;
            const auto in_logs = [&](int v) {
                Sum whole;
                for (int term = begin; term < end; term++) {
                    const int r = listed ? run.terms[term] : term;
                    real x = combine(arena[(index_t)(x_at + x_terms[r]) * row_length<V>() + v], x_by.at[v]);
                    if (scaled) x = combine(x, run.shared[f_at + f_terms[r]]);
                    for (int k = 2; k < count; k++) {
                        const int *other = operands + 3 * k;
                        const index_t row = run.offsets[other[0] + s] + run.offsets[other[1] + r];
                        x = combine(x, combine(arena[row * row_length<V>() + v], scaling_of<V>(other[2], b).at[v]));
                    }
                    whole.add(x);
                }
                return whole.value();
            };
            share.settle(arena + (index_t)out[s] * row_length<V>(), sum, again, round >= end, extremes, in_logs);
        } while (round < end);
    }
    if (share.leads()) extremes.record(step[SLOT], b);
}

#define TILES(i, j) \
    case 16 * i + j: return pair ? contract_tiles<i, j, true>(step, first, last, b, share) \
                                 : contract_tiles<i, j, false>(step, first, last, b, share);

__device__ __forceinline__ void contract(
    const int *step, int first, int last, index_t b, const Share &share) {
    if (step[HOW] == PRODUCTS) {
        if (step[COUNT] == 3) return contract_products<3>(step, first, last, b, share);
        if (step[COUNT] == 4) return contract_products<4>(step, first, last, b, share);
        return contract_products<0>(step, first, last, b, share);
    }
    const bool pair = step[HOW] == PAIRS;
    switch (16 * step[LINES_OF_TILE] + step[SIZE] / step[LINES_OF_TILE]) {
        EVERY_TILE
    }
}

// A block has an item for each of its warps, or one whose terms all of its warps share.
extern "C" __global__ void __launch_bounds__(MANY_THREADS, MANY_BLOCKS) contract_many(int first) {
    __shared__ Line meeting[MANY_THREADS];
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const int *begin = run.items + ITEM_COLUMNS * (first + blockIdx.x * warps);
    const bool together = begin[4] > 1;
    const int *item = together ? begin : begin + ITEM_COLUMNS * warp;
    if (item[0] == NOTHING || (index_t)blockIdx.y * 32 * WIDTH >= run.cases) return;
    const Share share = {together ? warp : 0, together ? warps : 1, meeting};
    const index_t b = ((index_t)blockIdx.y * 32 + lane) * WIDTH;
    contract(run.steps + STEP_COLUMNS * item[1], item[2], item[3], b, share);
}

// Evidence, bounds and posteriors, beside the contractions of the same stage: they wait for memory and need few registers.
extern "C" __global__ void __launch_bounds__(MANY_THREADS, REST_BLOCKS) rest_many(int first) {
    __shared__ real room[MANY_THREADS / 32][64 * WIDTH];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int *item = run.items + ITEM_COLUMNS * (first + blockIdx.x * (blockDim.x / 32) + warp);
    const index_t chunk = (index_t)blockIdx.y * 32 * WIDTH;
    if (chunk >= run.cases) return;
    if (item[0] == MARGINAL)
        marginal<WIDTH>(run.steps + STEP_COLUMNS * item[1], item[2], chunk, 32 * WIDTH, room[warp]);
    else if (item[0] != NOTHING)
        alone<WIDTH>(item, chunk + lane * WIDTH);
}

#ifdef MAXIMA
extern "C" __global__ void __launch_bounds__(TRACE_THREADS) trace_many(int) { trace_cases<WIDTH, 1>(); }

extern "C" __global__ void __launch_bounds__(TRACE_THREADS) trace_some(int) { trace_cases<WIDTH, TRACE_LANES>(); }
#endif
