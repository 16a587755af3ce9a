// Sum-product propagation on a GPU: the steps of a plan, lowered to flat arrays (`junctor_kernels.layout`), walked through
// stage by stage. What is in a stage is independent, so it is one launch (or two beside each other). Its work is cut into
// items:
//
//     contract_many, rest_many   a warp does an item for 32 * WIDTH cases, the case axis innermost: loads and stores of
//                                rows are 128 bits a lane, offsets and entries of factors the same for a whole warp.
//     propagate_few              a thread block does an item for all of the (few) cases: threads go over kept entries
//                                and terms.
//
// Messages are stored as they are summed. What they have to be multiplied with so that their largest entry is in
// [0.5, 1) is a power of two that follows from the bits of that entry; whoever reads a row multiplies.
//
// In the source come first `#define DOUBLE` or nothing, then the constants of `layout.py` and `gpu.py` as an enum.

#ifdef DOUBLE
typedef double real;
typedef unsigned long long word;
#define WIDTH 2
#define MANTISSA 52
#define BIAS 1022
#define TINY 2.2250738585072014e-308
#define INFINITE 0x7ff0000000000000ull
#else
typedef float real;
typedef unsigned int word;
#define WIDTH 4
#define MANTISSA 23
#define BIAS 126
#define TINY 1.17549435e-38f
#define INFINITE 0x7f800000u
#endif

typedef long long index_t;

#define LOG_2 0.693147180559945309417

// Numbers of V neighbouring cases.
template <int V, class T = real> struct alignas(V * sizeof(T) <= 16 ? V * sizeof(T) : 16) Lanes {
    T at[V];
};

typedef Lanes<WIDTH> Line;

#define EACH_CASE _Pragma("unroll") for (int v = 0; v < V; v++)

// Pointers into device memory, 8 bytes each, in the order of `junctor_kernels.gpu.FIELDS`; copied here before the launches
// of a block, because constants are read without a way to memory.
struct Run {
    const int *steps, *parents, *operands, *offsets, *span, *terms, *observed, *closing, *items;
    const real *columns, *shared;
    const double *scales, *leasts, *growth;
    const short *states;
    const double *likelihoods;
    real *arena, *lost, *open, *least;
    double *scale;
    word *largest, *smallest, *lossy;
    real *posteriors;
    double *parts, *found;
    const double *fixed;
    index_t cases, totals, closings;
};

extern "C" {
__constant__ Run run;
}

__device__ __forceinline__ real number(word bits) {
#ifdef DOUBLE
    return __longlong_as_double((long long)bits);
#else
    return __uint_as_float(bits);
#endif
}

__device__ __forceinline__ word bits_of(real number) {
#ifdef DOUBLE
    return (word)__double_as_longlong(number);
#else
    return __float_as_uint(number);
#endif
}

__device__ __forceinline__ int exponent(word largest) {
    int biased = (int)(largest >> MANTISSA);
    return biased > 1 ? biased : 1;
}

// The power of two that brings an entry of these bits into [0.5, 1).
__device__ __forceinline__ real power(word largest) {
    return number((word)(2 * BIAS + 1 - exponent(largest)) << MANTISSA);
}

template <int V, class T> __device__ __forceinline__ Lanes<V, T> load(const T *at) {
    return *reinterpret_cast<const Lanes<V, T> *>(at);
}

template <int V, class T> __device__ __forceinline__ void store(T *at, const Lanes<V, T> &lanes) {
    *reinterpret_cast<Lanes<V, T> *>(at) = lanes;
}

// The powers for some cases of an operand; tables that were scaled when they were made have no slot here.
template <int V> __device__ __forceinline__ Lanes<V> powers_of(int slot, index_t b) {
    Lanes<V> by;
    if (slot < 0) {
        EACH_CASE by.at[v] = 1;
        return by;
    }
    const Lanes<V, word> largest = load<V>(run.largest + slot * run.cases + b);
    EACH_CASE by.at[v] = power(largest.at[v]);
    return by;
}

template <int V> __device__ __forceinline__ void multiply(Lanes<V> &lanes, const Lanes<V> &by) {
    EACH_CASE lanes.at[v] *= by.at[v];
}

// The largest entries of some cases, and the smallest above zero.
struct Extremes {
    static const int V = WIDTH;
    Line most, least;

    __device__ __forceinline__ Extremes() { EACH_CASE most.at[v] = 0, least.at[v] = number(INFINITE); }

    __device__ __forceinline__ void see(const Line &line) {
        EACH_CASE {
            const real x = line.at[v];
            most.at[v] = x > most.at[v] ? x : most.at[v];
            least.at[v] = x > 0 && x < least.at[v] ? x : least.at[v];
        }
    }

    // Numbers of at least zero are ordered like their bits.
    // Most tiles change neither extreme, and looking is cheaper than an atomic operation.
    __device__ __forceinline__ void record(int slot, index_t b) const {
        word *largest = run.largest + slot * run.cases + b, *smallest = run.smallest + slot * run.cases + b;
        const Lanes<V, word> high = load<V>(largest), low = load<V>(smallest);
        EACH_CASE if (bits_of(most.at[v]) > high.at[v]) atomicMax(largest + v, bits_of(most.at[v]));
        EACH_CASE if (bits_of(least.at[v]) < low.at[v]) atomicMin(smallest + v, bits_of(least.at[v]));
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
            EACH_CASE sum.at[v] += meeting[32 * other + threadIdx.x % 32].at[v];
    }

    // Bring the sum of a round to its entry.
    __device__ __forceinline__ void settle(real *entry, Line sum, bool again, bool last, Extremes &extremes) const {
        const int V = WIDTH;
        join(sum);
        if (!leads()) return;
        if (again) {
            const Line before = load<V>(entry);
            EACH_CASE sum.at[v] += before.at[v];
        }
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
    const real *arena = run.arena + b;
    Line x_by = powers_of<V>(operands[5], b), y_by;
    if (PAIR) y_by = powers_of<V>(operands[8], b);
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
            Line sums[NI][NJ] = {};
            const int start = round + share.warp * RUN, stop = start + RUN < end ? start + RUN : end;
#pragma unroll 2
            for (int n = start; n < stop; n++) {
                const int r = listed ? run.terms[n] : n, x_term = x_terms[r], y_term = y_terms[r];
                Line x[NI];
#pragma unroll
                for (int i = 0; i < NI; i++) x[i] = load<V>(arena + (index_t)(x_at[i] + x_term) * run.cases);
#pragma unroll
                for (int i = 0; i < NI; i++) {
                    multiply(x[i], x_by);
                    if (PAIR) multiply(x[i], y_by);
                }
#pragma unroll
                for (int j = 0; j < NJ; j++) {
                    Line y;
                    if (PAIR) y = load<V>(arena + (index_t)(y_at[j] + y_term) * run.cases);
                    else y.at[0] = run.shared[y_at[j] + y_term];
#pragma unroll
                    for (int i = 0; i < NI; i++) EACH_CASE sums[i][j].at[v] += x[i].at[v] * y.at[PAIR ? v : 0];
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
                share.settle(run.arena + (index_t)*at * run.cases + b, summed[n], again, round >= end, extremes);
            }
        } while (round < end);
    }
    if (share.leads()) extremes.record(step[SLOT], b);
}

// Kept entries one by one, with any number of operands.
__device__ __forceinline__ void contract_products(
    const int *step, int first, int last, index_t b, const Share &share) {
    const int V = WIDTH;
    const int *operands = run.operands + 3 * step[FIRST], *out = run.offsets + step[OUT];
    const int count = step[COUNT];
    const bool scaled = operands[0] >= 0, listed = step[STRIDE];
    const int *f_kept = run.offsets + (scaled ? operands[0] : 0), *f_terms = run.offsets + (scaled ? operands[1] : 0);
    const int *x_kept = run.offsets + operands[3], *x_terms = run.offsets + operands[4];
    const Line x_by = powers_of<V>(operands[5], b);
    const real *arena = run.arena + b;
    Extremes extremes;
    for (int s = first; s < last; s++) {
        const int *span = run.span + step[SPAN] + s * step[STRIDE];
        const int begin = span[0], end = span[1], f_at = scaled ? f_kept[s] : 0, x_at = x_kept[s];
        int round = begin;
        do {
            Line sum = {};
            const int start = round + share.warp * RUN, stop = start + RUN < end ? start + RUN : end;
#pragma unroll 4
            for (int n = start; n < stop; n++) {
                const int r = listed ? run.terms[n] : n;
                Line x = load<V>(arena + (index_t)(x_at + x_terms[r]) * run.cases);
                multiply(x, x_by);
                if (scaled) {
                    const real f = run.shared[f_at + f_terms[r]];
                    EACH_CASE x.at[v] *= f;
                }
                for (int k = 2; k < count; k++) {
                    const int *other = operands + 3 * k;
                    const index_t row = run.offsets[other[0] + s] + run.offsets[other[1] + r];
                    Line y = load<V>(arena + row * run.cases);
                    multiply(y, powers_of<V>(other[2], b));
                    multiply(x, y);
                }
                EACH_CASE sum.at[v] += x.at[v];
            }
            const bool again = round > begin;
            round += share.warps * RUN;
            share.settle(run.arena + (index_t)out[s] * run.cases + b, sum, again, round >= end, extremes);
        } while (round < end);
    }
    if (share.leads()) extremes.record(step[SLOT], b);
}

#define TILES(i, j) \
    case 16 * i + j: return pair ? contract_tiles<i, j, true>(step, first, last, b, share) \
                                 : contract_tiles<i, j, false>(step, first, last, b, share);

__device__ __forceinline__ void contract(
    const int *step, int first, int last, index_t b, const Share &share) {
    if (step[HOW] == PRODUCTS) return contract_products(step, first, last, b, share);
    const bool pair = step[HOW] == PAIRS;
    switch (16 * step[LINES_OF_TILE] + step[SIZE] / step[LINES_OF_TILE]) {
        TILES(1, 2) TILES(1, 3) TILES(1, 4) TILES(1, 5) TILES(1, 6) TILES(1, 7) TILES(1, 8)
        TILES(2, 2) TILES(2, 3) TILES(2, 4) TILES(3, 2) TILES(3, 3) TILES(4, 2)
    }
}

// The kept entries [first, last) of a step for all cases, by a whole thread block; `split` threads share the terms of an
// entry. Neighbouring threads have neighbouring terms where `along` is set, neighbouring entries otherwise. K: the number
// of operands where it is known to the compiler, else 0.
template <int K>
__device__ __forceinline__ void contract_few(
    const int *step, const int *operands, int first, int last, int split, bool along, real *partial) {
    const int *out = run.offsets + step[OUT];
    const int count = K ? K : step[COUNT];
    const int groups = blockDim.x / split, me = threadIdx.x;
    const int group = along ? me / split : me % groups, share = along ? me % split : me / groups;
    const int cases = (int)run.cases, entries = (last - first) * cases;
    const bool listed = step[STRIDE], scaled = operands[0] >= 0;
    for (int start = 0; start < entries; start += groups) {
        const int e = start + group, s = first + e / cases, b = e % cases;
        real sum = 0;
        if (e < entries) {
            const int *span = run.span + step[SPAN] + s * step[STRIDE];
            const int *terms[K ? K : MOST_OPERANDS];
            int at[K ? K : MOST_OPERANDS];
            real by[K ? K : MOST_OPERANDS];
#pragma unroll
            for (int k = scaled ? 0 : 1; k < count; k++) {
                at[k] = run.offsets[operands[3 * k] + s];
                terms[k] = run.offsets + operands[3 * k + 1];
                by[k] = powers_of<1>(operands[3 * k + 2], b).at[0];
            }
            for (int start = span[0] + share; start < span[1]; start += RUN * split) {
                const int stop = start + RUN * split < span[1] ? start + RUN * split : span[1];
                real part = 0;
#pragma unroll 4
                for (int n = start; n < stop; n += split) {
                    const int r = listed ? run.terms[n] : n;
                    real x = scaled ? run.shared[at[0] + terms[0][r]] : (real)1;
#pragma unroll
                    for (int k = 1; k < count; k++)
                        x *= run.arena[(index_t)(at[k] + terms[k][r]) * cases + b] * by[k];
                    part += x;
                }
                sum += part;
            }
        }
        if (split > 1) {
            partial[me] = sum;
            __syncthreads();
            for (int half = split / 2; half; half /= 2) {
                if (share < half) partial[me] += partial[me + (along ? half : half * groups)];
                __syncthreads();
            }
            sum = partial[me];
            __syncthreads();
        }
        if (e < entries && share == 0) {
            run.arena[(index_t)out[s] * cases + b] = sum;
            const index_t slot = step[SLOT] * run.cases + b;
            // Most entries change neither: reading is cheaper than an atomic operation on one place for all of them.
            if (bits_of(sum) > run.largest[slot]) atomicMax(run.largest + slot, bits_of(sum));
            if (sum > 0 && bits_of(sum) < run.smallest[slot]) atomicMin(run.smallest + slot, bits_of(sum));
        }
    }
}

// Keep in mind that a case has lost something: most have not, which saves looking at every edge.
template <int V> __device__ __forceinline__ void remember(const Lanes<V> &lost, index_t b) {
    EACH_CASE if (lost.at[v] != 0) run.lossy[b + v] = 1;
}

// What a table lost to the format itself.
template <int V>
__device__ __forceinline__ void set_bounds(
    int slot, index_t b, const Lanes<V, double> &scale, const Lanes<V> &least) {
    const index_t at = slot * run.cases + b;
    Lanes<V> lost;
    EACH_CASE lost.at[v] = least.at[v] < (real)TINY ? (real)TINY : (real)0;
    store(run.scale + at, scale);
    store(run.least + at, least);
    store(run.lost + at, lost);
    store(run.open + at, lost);
    remember(lost, b);
}

// Rows [first, last) of a slice; the bounds go with the first of them.
template <int V> __device__ __forceinline__ void slice(const int *step, int first, int last, index_t b) {
    int column[V] = {};
    for (int n = step[OBSERVED]; n < step[OBSERVED] + step[VARIABLES]; n++) {
        const Lanes<V, short> states = load<V>(run.states + run.observed[2 * n] * run.cases + b);
        EACH_CASE column[v] += states.at[v] * run.observed[2 * n + 1];
    }
    const real *columns = run.columns + step[PLACE];
#pragma unroll 4
    for (int e = first; e < last; e++) {
        Lanes<V> line;
        EACH_CASE line.at[v] = columns[(index_t)e * step[COLUMNS] + column[v]];
        store(run.arena + (index_t)(step[ROW] + e) * run.cases + b, line);
    }
    if (first) return;
    Lanes<V, double> scale;
    Lanes<V> least;
    EACH_CASE scale.at[v] = run.scales[step[FACTS] + column[v]];
    EACH_CASE least.at[v] = (real)run.leasts[step[FACTS] + column[v]];
    set_bounds(step[SLOT], b, scale, least);
}

template <int V> __device__ __forceinline__ void likelihood(const int *step, index_t b) {
    const double *given = run.likelihoods + (index_t)step[PLACE] * run.cases + b;
    Lanes<V, double> largest = {}, scale;
    Lanes<V> least;
    double lowest[V];
    EACH_CASE lowest[v] = 1.0 / 0.0;
    for (int e = 0; e < step[ENTRIES]; e++) {
        const Lanes<V, double> value = load<V>(given + e * run.cases);
        EACH_CASE largest.at[v] = value.at[v] > largest.at[v] ? value.at[v] : largest.at[v];
        EACH_CASE lowest[v] = value.at[v] > 0 && value.at[v] < lowest[v] ? value.at[v] : lowest[v];
    }
    EACH_CASE scale.at[v] = log(largest.at[v]);
    EACH_CASE if (!(largest.at[v] > 0)) largest.at[v] = 1;
    EACH_CASE least.at[v] = lowest[v] < largest.at[v] ? (real)(lowest[v] / largest.at[v]) : (real)1;
    for (int e = 0; e < step[ENTRIES]; e++) {
        const Lanes<V, double> value = load<V>(given + e * run.cases);
        Lanes<V> line;
        EACH_CASE line.at[v] = (real)(value.at[v] / largest.at[v]);
        store(run.arena + (index_t)(step[ROW] + e) * run.cases + b, line);
    }
    set_bounds(step[SLOT], b, scale, least);
}

// Add up the scales of the operands and bound what was lost, as `junctor.propagation` says.
template <int V> __device__ __forceinline__ void bound(const int *step, bool total, index_t b) {
    const index_t slot = step[SLOT] * run.cases + b;
    const Lanes<V, word> bits = load<V>(run.largest + slot), small = load<V>(run.smallest + slot);
    Lanes<V, double> scale;
    Lanes<V> least, product, messages = {}, handed_on = {}, here = {};
    EACH_CASE {
        scale.at[v] = (exponent(bits.at[v]) - BIAS) * LOG_2;
        least.at[v] = small.at[v] < INFINITE ? number(small.at[v]) * power(bits.at[v]) : (real)1;
        least.at[v] = least.at[v] < 1 ? least.at[v] : (real)1;
        product.at[v] = 1;
    }
    for (int k = step[FIRST_PARENT]; k < step[FIRST_PARENT] + step[PARENTS]; k++) {
        const index_t other = run.parents[2 * k] * run.cases + b;
        const int role = run.parents[2 * k + 1];
        const Lanes<V, double> its_scale = load<V>(run.scale + other);
        const Lanes<V> its_least = load<V>(run.least + other), lost = load<V>(run.lost + other);
        EACH_CASE scale.at[v] += its_scale.at[v];
        EACH_CASE product.at[v] *= its_least.at[v];
        if (role == CONSTANT) {
            EACH_CASE here.at[v] += step[TERMS] * lost.at[v];
            continue;
        }
        EACH_CASE messages.at[v] += lost.at[v] * (1 + messages.at[v]);
        if (role == OPEN) {
            const Lanes<V> open = load<V>(run.open + other);
            EACH_CASE handed_on.at[v] += open.at[v];
        }
    }
    const real growth = (real)run.growth[(step - run.steps) / STEP_COLUMNS];
    Lanes<V> lost, open;
    EACH_CASE {
        const real largest = number(bits.at[v]);
        if (total) scale.at[v] += log((double)(largest * power(bits.at[v])));
        const real lowest = product.at[v] < least.at[v] ? product.at[v] : least.at[v];
        if (lowest < (real)TINY) here.at[v] += step[PARENTS] * (real)TINY * step[TERMS];
        const bool lossless = messages.at[v] == 0 && here.at[v] == 0 && handed_on.at[v] == 0;
        const real more = 1 + messages.at[v];
        lost.at[v] = lossless ? (real)0 : (growth * messages.at[v] + here.at[v] * more) / largest;
        open.at[v] = lossless ? (real)0 : (growth * handed_on.at[v] + here.at[v]) * more / largest;
    }
    store(run.scale + slot, scale);
    store(run.least + slot, least);
    store(run.lost + slot, lost);
    store(run.open + slot, open);
    remember(lost, b);
}

// The posteriors of a warp's cases lie side by side: [variable] [case] [state]. Lanes first sum their own cases, then
// write neighbouring numbers, whatever case they belong to. `room` holds two numbers for each of the warp's cases.
template <int V>
__device__ __forceinline__ void marginal(const int *step, int row, index_t chunk, int cases, real *room) {
    const int entries = step[ENTRIES], lane = threadIdx.x % 32;
    const int slot = step[KIND] == REDUCE ? step[SLOT] : -1;
    const real *table = run.arena + (index_t)step[ROW] * run.cases + chunk;
    real *by = room, *totals = room + 32 * V;
    if (lane * V < cases) {
        const Lanes<V> powers = powers_of<V>(slot, chunk + lane * V);
        Lanes<V> total = {};
        for (int e = 0; e < entries; e++) {
            const Lanes<V> line = load<V>(table + e * run.cases + lane * V);
            EACH_CASE total.at[v] += line.at[v] * powers.at[v];
        }
        store(by + lane * V, powers);
        store(totals + lane * V, total);
    }
    __syncwarp();
    real *out = run.posteriors + row * run.cases + chunk * entries;
    for (int n = lane; n < cases * entries; n += 32) {
        const int b = n / entries, e = n % entries;
        out[n] = table[e * run.cases + b] * by[b] / totals[b];
    }
    __syncwarp();
}

// log P(e), the share of the probability that losses can have moved at edges, the largest open share of a result.
template <int V> struct Finding {
    Lanes<V, double> log_value, moved, left;

    __device__ __forceinline__ Finding() { EACH_CASE log_value.at[v] = moved.at[v] = left.at[v] = 0; }

    __device__ __forceinline__ Finding(const double *at, index_t b)
        : log_value(load<V>(at + b)), moved(load<V>(at + run.cases + b)), left(load<V>(at + 2 * run.cases + b)) {}

    __device__ __forceinline__ void add(const Finding &other) {
        EACH_CASE log_value.at[v] += other.log_value.at[v];
        EACH_CASE moved.at[v] += other.moved.at[v];
        // Not (other.left > left), so that a bound of 0/0 is kept.
        EACH_CASE if (!(other.left.at[v] <= left.at[v])) left.at[v] = other.left.at[v];
    }

    __device__ __forceinline__ void write(double *at, index_t b) const {
        store(at + b, log_value);
        store(at + run.cases + b, moved);
        store(at + 2 * run.cases + b, left);
    }
};

// What every `step`-th table with a part in the results adds for some cases, from the `first` on.
template <int V> __device__ __forceinline__ Finding<V> finding(index_t b, int first, int step) {
    Finding<V> found;
    bool lossy = false;
    const Lanes<V, word> lost_any = load<V>(run.lossy + b);
    EACH_CASE lossy |= lost_any.at[v] != 0;
    for (int n = first; n < (lossy ? run.closings : run.totals); n += step) {
        const int *what = run.closing + CLOSING_COLUMNS * n;
        const index_t down = what[1] * run.cases + b;
        const double entries = what[2];
        Finding<V> here;
        if (n < run.totals) here.log_value = load<V>(run.scale + down);
        const Lanes<V> its = load<V>(run.open + down);
        if (what[0]) EACH_CASE here.left.at[v] = 2 * entries * its.at[v];
        if (what[3] >= 0) {
            const index_t up = what[3] * run.cases + b;
            const Lanes<V> mine = load<V>(run.open + up);
            const Lanes<V> lost_up = load<V>(run.lost + up), lost_down = load<V>(run.lost + down);
            EACH_CASE {
                here.moved.at[v] = entries * (mine.at[v] * (1.0 + lost_down.at[v]) + its.at[v] * (1.0 + lost_up.at[v]));
                if (here.moved.at[v] != 0) {
                    const double whole = run.scale[what[4] * run.cases + b + v];
                    here.moved.at[v] /= exp(whole - run.scale[up + v] - run.scale[down + v]);
                }
            }
        }
        found.add(here);
    }
    return found;
}

// The parts of what was found, added up.
template <int V> __device__ __forceinline__ void finish(index_t b) {
    Finding<V> found;
    for (int part = 0; part < PARTS; part++) found.add(Finding<V>(run.parts + 3 * part * run.cases, b));
    found.write(run.found, b);
}

// The same by a thread block, for one case after the other; always added up in the same order.
__device__ __forceinline__ void finish_together(Finding<1> *meeting) {
    const int me = threadIdx.x;
    for (index_t b = 0; b < run.cases; b++) {
        meeting[me] = finding<1>(b, me, blockDim.x);
        __syncthreads();
        for (int half = blockDim.x / 2; half; half /= 2) {
            if (me < half) meeting[me].add(meeting[me + half]);
            __syncthreads();
        }
        if (me == 0) meeting[0].write(run.found, b);
        __syncthreads();
    }
}

// The bounds of a table that no case changes: scale, lost, open, least.
template <int V> __device__ __forceinline__ void settle_fixed(int slot, int n, index_t b) {
    const double *fixed = run.fixed + 4 * n;
    const index_t at = slot * run.cases + b;
    Lanes<V, double> scale;
    Lanes<V> lost, open, least;
    EACH_CASE scale.at[v] = fixed[0], lost.at[v] = (real)fixed[1], open.at[v] = (real)fixed[2];
    EACH_CASE least.at[v] = (real)fixed[3];
    store(run.scale + at, scale);
    store(run.lost + at, lost);
    store(run.open + at, open);
    store(run.least + at, least);
    remember(lost, b);
}

// What is neither a contraction nor a posterior, for V cases.
template <int V> __device__ __forceinline__ void alone(const int *item, index_t b) {
    if (item[0] == FIXED_TABLE) return settle_fixed<V>(item[1], item[2], b);
    const int *step = run.steps + STEP_COLUMNS * item[1];
    if (item[0] == BOUND) return bound<V>(step, item[2], b);
    if (item[0] == FIND) return finding<V>(b, item[2], PARTS).write(run.parts + 3 * item[2] * run.cases, b);
    if (item[0] == FINISH) return finish<V>(b);
    return step[KIND] == SLICE ? slice<V>(step, item[2], item[3], b) : likelihood<V>(step, b);
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

extern "C" __global__ void __launch_bounds__(FEW_THREADS) propagate_few(int first) {
    __shared__ double room[3 * FEW_THREADS];
    real *partial = reinterpret_cast<real *>(room);
    const int *item = run.items + ITEM_COLUMNS * (first + blockIdx.x);
    const int *step = run.steps + STEP_COLUMNS * item[1];
    if (item[0] == MARGINAL) {
        if (threadIdx.x < 32)
            for (int chunk = 0; chunk < run.cases; chunk += 32)
                marginal<1>(step, item[2], chunk, run.cases - chunk < 32 ? run.cases - chunk : 32, partial);
        return;
    }
    if (item[0] == FINISH) return finish_together(reinterpret_cast<Finding<1> *>(room));
    if (item[0] != CONTRACT) {
        for (index_t b = threadIdx.x; b < run.cases; b += blockDim.x) alone<1>(item, b);
        return;
    }
    // From the item rather than from the step: with few cases a stage is not much more than a chain of loads.
    const int *operands = run.operands + 3 * item[6];
    switch (item[7]) {
        case 2: return contract_few<2>(step, operands, item[2], item[3], item[4], item[5], partial);
        case 3: return contract_few<3>(step, operands, item[2], item[3], item[4], item[5], partial);
        default: return contract_few<0>(step, operands, item[2], item[3], item[4], item[5], partial);
    }
}
