// Contractions of one case on a GPU: threads go over kept entries, or over the terms of an entry; agrees with
// `junctor_kernels.entries`.
//
//     reduce_quads_K_N   a thread for four neighbouring entries of many panels; K operands, N terms at a time.
//     reduce_apart_K_N   the same for four entries that are neighbours in the largest operand and lie apart in the result,
//                        which is one more operand.
//     reduce_chain_M     M eliminations of one table, of which a thread has four entries for all states of the axes that
//                        come and go.
//     reduce_entries_K   a thread for some entries of a panel, each of which sums its own terms; K operands.
//     reduce_terms       a thread block for an entry, its threads share the terms.
//     gather             what several devices found, as one.
//     carry              a copy that need not wait for those that are under way.
//     relay              brings what was found about a table to another device, through memory that both reach.
//     exchange           brings a part of a table from wherever its pieces lie, on any device, or takes it there.
//     exchange_runs      the same for long runs, by bulk copies where devices have them.
//
// Results are stored as they are summed. The power of two that brings a table near one follows from its largest entry in
// the first task of a pass, the same for all tasks, and whoever reads the table multiplies; of logarithms (LOGS) that entry
// is subtracted. Maxima (MAXIMA) take the place of sums for explanations.
//
// Offsets are separable twice: an entry lies in a panel and at a place inside it, a term in a far and a near part. So no
// table of offsets grows with a clique. In the source come first `#define DOUBLE` or nothing, `#define LOGS` and `#define
// MAXIMA` or nothing, then the constants of `entries_gpu.py` as an enum, then numbers.cu and algebra.cu.

// One table: where entries and terms lie in it, and what its numbers are combined with: `scale` and, where there is a
// `lead`, what follows from the entry of that rank, or of the one two words on if it is larger and counts (`whole`). quad, second to
// fourth: how the entries of a thread lie to each other. rows: of a small table of a chain the places of entries in it.
struct Operand {
    const real *table;
    const index_t *panels;
    const int *places;
    const index_t *far;
    const int *near;
    double scale;
    const word *lead;
    index_t whole, quad, second, third, fourth, rows;
};

// Everything that a launch needs; 8 bytes a field, in the order of `entries_gpu.FIELDS`, then the operands. out_panels:
// where each panel of the result begins, if not one after the other.
struct Reduction {
    real *out;
    const index_t *out_panels;
    word *extremes;
    index_t entries, panel, near_terms, far_terms, operands, adds;
    Operand operand[MOST_OPERANDS];
};

// What numbers of an operand are combined with; `entries_gpu.shift_of` is the same on the host.
__device__ __forceinline__ real scale_of(const Operand &each) {
    word bits = each.lead ? *each.lead : 0;
    if (each.whole && each.lead[2] > bits) bits = each.lead[2];
#ifdef LOGS
    const real most = of_rank(bits);
    // Neither where all are -inf nor where one is beyond the format, or not a number.
    if (!bits || is_nothing(most) || !(most < -EMPTY_SUM)) return (real)each.scale;
    return (real)each.scale - rint(most);
#else
#ifdef DOUBLE
    const int biased = (int)(bits >> 52), half = 1022, beyond = 2047, digits = 52;
#else
    const int biased = (int)(bits >> 23), half = 126, beyond = 255, digits = 23;
#endif
    if (!bits || biased == beyond) return (real)each.scale;
    const int exponent = biased - half > half ? half : biased - half;
    return (real)each.scale * number((word)(half + 1 - exponent) << digits);
#endif
}

// The rank of the largest entry and, as its complement, of the smallest above zero where numbers may be lost.
__device__ __forceinline__ void note(word *extremes, word largest, word smallest) {
    for (int offset = 16; offset; offset /= 2) {
        word other = __shfl_down_sync(~0u, largest, offset);
        largest = other > largest ? other : largest;
        other = __shfl_down_sync(~0u, smallest, offset);
        smallest = other > smallest ? other : smallest;
    }
    if (threadIdx.x % 32 == 0 && extremes) {
        if (largest > extremes[0]) atomicMax(extremes, largest);
        if (smallest > extremes[1]) atomicMax(extremes + 1, smallest);
    }
}

// What is smallest is found before it is added to others, and the largest of the sums.
__device__ __forceinline__ real added(real sum, bool adds, real before, word &largest, word &smallest) {
    if (!LOSSLESS && sum > 0 && ~rank(sum) > smallest) smallest = ~rank(sum);
    const real total = adds ? sum_of(before, sum) : sum;
    if (rank(total) > largest) largest = rank(total);
    return total;
}

// Where a panel of the result begins.
__device__ __forceinline__ index_t begin_of(const Reduction &what, index_t panel) {
    return what.out_panels ? __ldg(what.out_panels + panel) : panel * what.panel;
}

__device__ __forceinline__ void finish(const Reduction &what, index_t at, real sum, word &largest, word &smallest) {
    what.out[at] = added(sum, what.adds, what.adds ? what.out[at] : 0, largest, smallest);
}

// Numbers that are loaded and stored as one.
struct __align__(2 * sizeof(real)) Pair {
    real first, second;
};
struct __align__(16) Quad {
    real number[4];
};

// Four neighbouring entries of an operand for N terms. Which way is the same for all threads of a launch.
template <int N>
__device__ __forceinline__ void load(real (&number)[N][4], const Operand &each, const real *here, const int *near) {
    if (each.quad == SAME) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const real one = __ldg(here + near[n]);
#pragma unroll
            for (int v = 0; v < 4; v++) number[n][v] = one;
        }
    } else if (each.quad == PAIRS) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const Pair pair = *(const Pair *)(here + near[n]);
            number[n][0] = number[n][1] = pair.first, number[n][2] = number[n][3] = pair.second;
        }
    } else if (each.quad == RUN) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const Quad quad = *(const Quad *)(here + near[n]);
#pragma unroll
            for (int v = 0; v < 4; v++) number[n][v] = quad.number[v];
        }
    } else {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int at = near[n];
            number[n][0] = __ldg(here + at), number[n][1] = __ldg(here + (at + (int)each.second));
            number[n][2] = __ldg(here + (at + (int)each.third)), number[n][3] = __ldg(here + (at + (int)each.fourth));
        }
    }
}

// Few terms of few operands: it is memory that counts, so loads are wide, and the next panel's offsets come early. TARGET:
// whether the entries of a thread lie apart in the result, where operand K says.
template <int K, int N, bool TARGET> __device__ __forceinline__ void over_quads(const Reduction &what) {
    __shared__ int near[K][NEAR];
    for (int n = threadIdx.x; n < what.near_terms; n += THREADS)
        for (int k = 0; k < K; k++) near[k][n] = what.operand[k].near[n];
    __syncthreads();
    const int tiles = (int)((what.panel + TILE - 1) / TILE);
    const int first = (int)(blockIdx.x % tiles) * TILE + threadIdx.x * 4;
    const bool is_inside = first < what.panel;
    const int panels = (int)(what.entries / what.panel), step = gridDim.x / tiles;
    int panel = blockIdx.x / tiles;
    int place[K];
    real scale[K];
    index_t offset[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        place[k] = what.operand[k].places[is_inside ? first : 0];
        scale[k] = scale_of(what.operand[k]);
        offset[k] = what.operand[k].panels[panel];
    }
    word largest = 0, smallest = 0;
    for (; is_inside && panel < panels; panel += step) {
        const real *here[K];
        const int next = panel + step < panels ? panel + step : panels - 1;
#pragma unroll
        for (int k = 0; k < K; k++) {
            here[k] = what.operand[k].table + (offset[k] + place[k]);
            offset[k] = what.operand[k].panels[next];
        }
        Sum sum[4];
        for (int n = 0; n < what.near_terms; n += N) {
            real number[K][N][4];
            // The largest operand, which comes from farthest away, first.
#pragma unroll
            for (int k = K - 1; k >= 0; k--) load<N>(number[k], what.operand[k], here[k], near[k] + n);
#pragma unroll
            for (int m = 0; m < N; m++)
#pragma unroll
                for (int v = 0; v < 4; v++) {
                    real product = combine(number[0][m][v], scale[0]);
#pragma unroll
                    for (int k = 1; k < K; k++) product = combine(product, combine(number[k][m][v], scale[k]));
                    sum[v].add(product);
                }
        }
        // Only now, because it would take registers.
        if (TARGET) {
            const Operand &target = what.operand[K];
            real *out = (real *)target.table + (target.panels[panel] + target.places[first]);
            const int lies[4] = {0, (int)target.second, (int)target.third, (int)target.fourth};
#pragma unroll
            for (int v = 0; v < 4; v++) {
                const real before = what.adds ? out[lies[v]] : 0;
                out[lies[v]] = added(sum[v].value(), what.adds, before, largest, smallest);
            }
        } else {
            Quad *out = (Quad *)(what.out + (begin_of(what, panel) + first));
            Quad total = {};
            if (what.adds) total = *out;
#pragma unroll
            for (int v = 0; v < 4; v++)
                total.number[v] = added(sum[v].value(), what.adds, total.number[v], largest, smallest);
            *out = total;
        }
    }
    note(what.extremes, largest, smallest);
}

// As many blocks on a multiprocessor as leave registers enough: the more loads are under way, the better.
#ifdef DOUBLE
#define BLOCKS(K) (4 - (K))
#else
#define BLOCKS(K) ((K) == 3 ? 4 : 5)
#endif
#define REDUCE_QUADS(K, N) \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS(K)) reduce_quads_##K##_##N(const Reduction what) { \
        over_quads<K, N, false>(what); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS(K)) reduce_apart_##K##_##N(const Reduction what) { \
        over_quads<K, N, true>(what); \
    }
REDUCE_QUADS(1, 1)
REDUCE_QUADS(1, 2)
REDUCE_QUADS(2, 1)
REDUCE_QUADS(2, 2)
REDUCE_QUADS(3, 1)
REDUCE_QUADS(3, 2)

// The state of the axes that come and go whose numbers lie at a place of a tile: the first axis fastest, or last.
template <int M> __device__ __forceinline__ constexpr int state_at(int at, bool last_first) {
    if (!last_first) return at;
    int state = 0;
    for (int n = 0; n < M; n++) state |= (at >> n & 1) << (M - 1 - n);
    return state;
}

// The first state of a pair that differs in the state of an axis.
template <int STAGE> __device__ __forceinline__ constexpr int first_of(int pair) {
    return (pair >> STAGE) << (STAGE + 1) | (pair & ((1 << STAGE) - 1));
}

// Four entries of a table for all states of these axes, from where they are to registers.
template <int M, bool LAST_FIRST>
__device__ __forceinline__ void load_tiles(real (&number)[1 << M][4], const real *here, const int (&lies)[4]) {
#pragma unroll
    for (int v = 0; v < 4; v++)
#pragma unroll
        for (int at = 0; at < 1 << M; at += 4) {
            const Quad quad = *(const Quad *)(here + (lies[v] + at));
#pragma unroll
            for (int n = 0; n < 4; n++) number[state_at<M>(at + n, LAST_FIRST)][v] = quad.number[n];
        }
}

template <int M, bool LAST_FIRST>
__device__ __forceinline__ void store_tiles(const real (&number)[1 << M][4], real *here, const int (&lies)[4]) {
#pragma unroll
    for (int v = 0; v < 4; v++)
#pragma unroll
        for (int at = 0; at < 1 << M; at += 4) {
            Quad quad;
#pragma unroll
            for (int n = 0; n < 4; n++) quad.number[n] = number[state_at<M>(at + n, LAST_FIRST)][v];
            *(Quad *)(here + (lies[v] + at)) = quad;
        }
}

template <int M>
__device__ __forceinline__ void load_all(
    real (&number)[1 << M][4], const real *here, index_t kind, const int *near, const int (&lies)[4]
) {
    if (kind == TILE_RUN) {
        load_tiles<M, false>(number, here, lies);
    } else if (kind == TILE_LAST_FIRST) {
        load_tiles<M, true>(number, here, lies);
    } else {
#pragma unroll
        for (int n = 0; n < 1 << M; n++)
#pragma unroll
            for (int v = 0; v < 4; v++) number[n][v] = here[near[n] + lies[v]];
    }
}

template <int M>
__device__ __forceinline__ void load_scaled(
    real (&number)[1 << M][4], const real *here, index_t kind, const int *near, const int (&lies)[4], real scale
) {
    load_all<M>(number, here, kind, near, lies);
#pragma unroll
    for (int n = 0; n < 1 << M; n++)
#pragma unroll
        for (int v = 0; v < 4; v++) number[n][v] = combine(number[n][v], scale);
}

template <int M>
__device__ __forceinline__ void store_all(
    const real (&number)[1 << M][4], real *here, index_t kind, const int *near, const int (&lies)[4]
) {
    if (kind == TILE_RUN) {
        store_tiles<M, false>(number, here, lies);
    } else if (kind == TILE_LAST_FIRST) {
        store_tiles<M, true>(number, here, lies);
    } else {
#pragma unroll
        for (int n = 0; n < 1 << M; n++)
#pragma unroll
            for (int v = 0; v < 4; v++) here[near[n] + lies[v]] = number[n][v];
    }
}

// The small table of a stage, for a place in it and a pair: what number belongs to which is in `eliminate`.
template <int M, int STAGE>
__device__ __forceinline__ real factor_of(const Operand &each, real scale, int row, int pair, int which) {
    const int state = first_of<STAGE>(pair) | (which >> 1) << STAGE;
    return combine(__ldg(each.table + (row + each.near[2 * state + (which & 1)])), scale);
}

#if defined(LOGS) && !defined(MAXIMA)
// Logarithms are brought to plain numbers once, divided by the largest of those that may be added up, and back at the
// end: stages need no exponentials. These lose at most 1e-307, times factors of at most e^30 a stage, which no sum of
// LEAST_PLAIN shows. Smaller sums and larger factors go through the stages as logarithms.
#define PLAIN_CHAINS
#define LEAST_PLAIN 1e-200
#define MOST_FACTOR 30

template <int M> __device__ __forceinline__ void bring_to_plain(real (&number)[1 << M][4], real (&most)[4]) {
#pragma unroll
    for (int v = 0; v < 4; v++) {
        most[v] = number[0][v];
#pragma unroll
        for (int n = 1; n < 1 << M; n++) most[v] = number[n][v] > most[v] ? number[n][v] : most[v];
#pragma unroll
        for (int n = 0; n < 1 << M; n++) number[n][v] = exp(number[n][v] - most[v]);
    }
}

// As `eliminate`; returns false where logarithms are needed. Of all stages but the last it notes what is largest.
template <int M, int STAGE, bool IS_SAME>
__device__ __forceinline__ bool eliminate_plain(
    real (&number)[1 << M][4], const real (&most)[4], const Quad *rows, const int (&lies)[4], word &largest
) {
    real low = 1, top[4] = {0, 0, 0, 0};
#pragma unroll
    for (int pair = 0; pair < 1 << (M - 1); pair++) {
        const int n = first_of<STAGE>(pair), other = n | 1 << STAGE;
        Quad factor;
#pragma unroll
        for (int v = 0; v < 4; v++) {
            if (!IS_SAME || v == 0) factor = rows[(lies[v] << (M - 1)) + pair];
            const real first = fma(factor.number[1], number[other][v], factor.number[0] * number[n][v]);
            const real second = fma(factor.number[3], number[other][v], factor.number[2] * number[n][v]);
            number[n][v] = first, number[other][v] = second;
            low = first < low ? first : low, low = second < low ? second : low;
            top[v] = first > top[v] ? first : top[v], top[v] = second > top[v] ? second : top[v];
        }
    }
    if (!(low >= LEAST_PLAIN && top[0] < -EMPTY_SUM && top[1] < -EMPTY_SUM && top[2] < -EMPTY_SUM && top[3] < -EMPTY_SUM))
        return false;
    if (STAGE < M - 1) {
#pragma unroll
        for (int v = 0; v < 4; v++) {
            const word most_here = rank(most[v] + log(top[v]));
            largest = most_here > largest ? most_here : largest;
        }
    }
    return true;
}

template <int M, int STAGE>
__device__ __forceinline__ bool eliminate_plain_from(
    real (&number)[1 << M][4], const real (&most)[4], const Reduction &what, int panel, const int (&place)[M + 2],
    const Quad (*rows)[MOST_ROWS << (M - 1)], word (&largest)[M]
) {
    const Operand &each = what.operand[STAGE + 1];
    const Quad *here = rows[STAGE] + (((int)each.panels[panel] + place[STAGE + 1]) << (M - 1));
    const int lies[4] = {0, (int)each.second, (int)each.third, (int)each.fourth};
    const bool done = each.quad == SAME ? eliminate_plain<M, STAGE, true>(number, most, here, lies, largest[STAGE])
                                        : eliminate_plain<M, STAGE, false>(number, most, here, lies, largest[STAGE]);
    if (!done) return false;
    if constexpr (STAGE + 1 < M)
        return eliminate_plain_from<M, STAGE + 1>(number, most, what, panel, place, rows, largest);
    else
        return true;
}

// Returns false where a number is not finite.
template <int M>
__device__ __forceinline__ bool bring_back(real (&number)[1 << M][4], const real (&most)[4], word &largest) {
    word found = largest;
    bool is_finite = true;
#pragma unroll
    for (int n = 0; n < 1 << M; n++)
#pragma unroll
        for (int v = 0; v < 4; v++) {
            number[n][v] = most[v] + log(number[n][v]);
            is_finite = is_finite && number[n][v] < -EMPTY_SUM;
            const word here = rank(number[n][v]);
            found = here > found ? here : found;
        }
    if (is_finite) largest = found;
    return is_finite;
}
#endif

// The small table of a stage from a place in it on, four numbers a pair: in shared memory, or where it is.
template <int M, int STAGE> struct Factors {
#ifdef PLAIN_CHAINS
    const Operand &each;
    int place;

    __device__ __forceinline__ Quad at(int apart, int pair) const {
        const real scale = scale_of(each);
        Quad factor;
#pragma unroll
        for (int n = 0; n < 4; n++) factor.number[n] = factor_of<M, STAGE>(each, scale, place + apart, pair, n);
        return factor;
    }
#else
    const Quad *rows;

    __device__ __forceinline__ Quad at(int apart, int pair) const { return rows[(apart << (M - 1)) + pair]; }
#endif
};

// One elimination: pairs of numbers that differ in the state of its axis become the sums for both states of the axis
// that comes in its place. `least` is what is smallest above zero, less one, so that a zero is largest.
template <int M, int STAGE, bool IS_SAME>
__device__ __forceinline__ void eliminate(
    real (&number)[1 << M][4], const Factors<M, STAGE> &factors, const int (&lies)[4], word &largest, word &least
) {
#pragma unroll
    for (int pair = 0; pair < 1 << (M - 1); pair++) {
        const int n = first_of<STAGE>(pair), other = n | 1 << STAGE;
        Quad factor;
#pragma unroll
        for (int v = 0; v < 4; v++) {
            if (!IS_SAME || v == 0) factor = factors.at(lies[v], pair);
            const real first = sum_of_products(factor.number[1], number[other][v], factor.number[0], number[n][v]);
            const real second = sum_of_products(factor.number[3], number[other][v], factor.number[2], number[n][v]);
            number[n][v] = first, number[other][v] = second;
            const word one = rank(first), two = rank(second);
            largest = one > largest ? one : largest, largest = two > largest ? two : largest;
            if (!LOSSLESS) least = one - 1 < least ? one - 1 : least, least = two - 1 < least ? two - 1 : least;
        }
    }
}

// All eliminations from a stage on.
template <int M, int STAGE>
__device__ __forceinline__ void eliminate_from(
    real (&number)[1 << M][4], const Reduction &what, int panel, const int (&place)[M + 2],
    const Quad (*rows)[MOST_ROWS << (M - 1)], word (&largest)[M], word (&least)[M]
) {
    const Operand &each = what.operand[STAGE + 1];
    const int begin = (int)each.panels[panel] + place[STAGE + 1];
#ifdef PLAIN_CHAINS
    const Factors<M, STAGE> factors = {each, begin};
#else
    const Factors<M, STAGE> factors = {rows[STAGE] + (begin << (M - 1))};
#endif
    const int lies[4] = {0, (int)each.second, (int)each.third, (int)each.fourth};
    if (each.quad == SAME)
        eliminate<M, STAGE, true>(number, factors, lies, largest[STAGE], least[STAGE]);
    else
        eliminate<M, STAGE, false>(number, factors, lies, largest[STAGE], least[STAGE]);
    if constexpr (STAGE + 1 < M) eliminate_from<M, STAGE + 1>(number, what, panel, place, rows, largest, least);
}

// The numbers of the small table of a stage as its elimination reads them from shared memory.
template <int M, int STAGE>
__device__ __forceinline__ void lay_out(const Reduction &what, Quad (*rows)[MOST_ROWS << (M - 1)]) {
    const Operand &each = what.operand[STAGE + 1];
    const real scale = scale_of(each);
    for (int n = threadIdx.x; n < (int)each.rows << (M + 1); n += THREADS) {
        const int row = n >> (M + 1), pair = n >> 2 & ((1 << (M - 1)) - 1);
        const real factor = factor_of<M, STAGE>(each, scale, row, pair, n & 3);
#ifdef PLAIN_CHAINS
        rows[STAGE][n >> 2].number[n & 3] = factor <= MOST_FACTOR ? exp(factor) : -EMPTY_SUM;
#else
        rows[STAGE][n >> 2].number[n & 3] = factor;
#endif
    }
    if constexpr (STAGE + 1 < M) lay_out<M, STAGE + 1>(what, rows);
}

template <int M> __device__ __forceinline__ void over_chain(const Reduction &what) {
    __shared__ Quad rows[M][MOST_ROWS << (M - 1)];
    __shared__ int from[1 << M], to[1 << M];
    if (threadIdx.x < 1 << M) {
        from[threadIdx.x] = what.operand[0].near[threadIdx.x];
        to[threadIdx.x] = what.operand[M + 1].near[threadIdx.x];
    }
    lay_out<M, 0>(what, rows);
    __syncthreads();
    const int tiles = (int)((what.panel + TILE - 1) / TILE);
    // The threads of a warp take neighbours, each of them four that are a warp apart.
    const int first = (int)(blockIdx.x % tiles) * TILE + threadIdx.x / 32 * 128 + threadIdx.x % 32;
    const bool is_inside = first < what.panel;
    const int panels = (int)(what.entries / what.panel), step = gridDim.x / tiles;
    int place[M + 2];
#pragma unroll
    for (int k = 0; k < M + 2; k++) place[k] = what.operand[k].places[is_inside ? first : 0];
    const Operand &source = what.operand[0], &target = what.operand[M + 1];
    const int apart[4] = {0, (int)source.second, (int)source.third, (int)source.fourth};
    const int to_apart[4] = {0, (int)target.second, (int)target.third, (int)target.fourth};
    const real scale = scale_of(source);
    word largest[M], least[M];
#pragma unroll
    for (int m = 0; m < M; m++) largest[m] = 0, least[m] = ~(word)0;
    for (int panel = blockIdx.x / tiles; is_inside && panel < panels; panel += step) {
        real number[1 << M][4];
        const real *here = source.table + (source.panels[panel] + place[0]);
        load_scaled<M>(number, here, source.quad, from, apart, scale);
#ifdef PLAIN_CHAINS
        real most[4];
        bring_to_plain<M>(number, most);
        const bool done = eliminate_plain_from<M, 0>(number, most, what, panel, place, rows, largest) &&
                          bring_back<M>(number, most, largest[M - 1]);
        if (!done) {
            load_scaled<M>(number, here, source.quad, from, apart, scale);
            eliminate_from<M, 0>(number, what, panel, place, rows, largest, least);
        }
#else
        eliminate_from<M, 0>(number, what, panel, place, rows, largest, least);
#endif
        store_all<M>(number, (real *)target.table + (target.panels[panel] + place[M + 1]), target.quad, to, to_apart);
    }
#pragma unroll
    for (int m = 0; m < M; m++)
        note(what.extremes ? what.extremes + 4 * m : 0, largest[m], least[m] == ~(word)0 ? 0 : ~(least[m] + 1));
}

// Some registers go to memory for that in single precision, which costs less than fewer loads under way.
#ifdef DOUBLE
#define CHAIN_BLOCKS(M) 2
#else
#define CHAIN_BLOCKS(M) (M < 4 ? 3 : 2)
#endif
#define REDUCE_CHAIN(M) \
    extern "C" __global__ void __launch_bounds__(THREADS, CHAIN_BLOCKS(M)) reduce_chain_##M(const Reduction what) { over_chain<M>(what); }
REDUCE_CHAIN(2)
REDUCE_CHAIN(3)
#ifndef DOUBLE
REDUCE_CHAIN(4)
#endif

// K operands, known when compiled, or any number of them (0).
template <int K> __device__ __forceinline__ void over_entries(const Reduction &what) {
    const int count = K ? K : (int)what.operands;
    const int tiles = (int)((what.panel + TILE - 1) / TILE);
    const index_t panels = what.entries / what.panel;
    const int first = (int)(blockIdx.x % tiles) * TILE + threadIdx.x;
    // Places are the same in all panels, so a block takes one tile of many of them.
    int place[K ? K : MOST_OPERANDS][EACH];
    real scales[K ? K : MOST_OPERANDS];
#pragma unroll
    for (int k = 0; k < count; k++) scales[k] = scale_of(what.operand[k]);
#pragma unroll
    for (int k = 0; k < count; k++)
#pragma unroll
        for (int v = 0; v < EACH; v++) {
            const int inside = first + v * THREADS;
            place[k][v] = what.operand[k].places[inside < what.panel ? inside : 0];
        }
    word largest = 0, smallest = 0;
    for (index_t panel = blockIdx.x / tiles; panel < panels; panel += gridDim.x / tiles) {
        Total sum[EACH];
        for (index_t f = 0; f < what.far_terms; f++) {
            Sum part[EACH];
            const real *here[K ? K : MOST_OPERANDS];
#pragma unroll
            for (int k = 0; k < count; k++)
                here[k] = what.operand[k].table + what.operand[k].panels[panel] + what.operand[k].far[f];
#pragma unroll 2
            for (int n = 0; n < what.near_terms; n++) {
                real product[EACH];
                // A variable of no table.
                if (!count)
                    for (int v = 0; v < EACH; v++) product[v] = NEUTRAL;
#pragma unroll
                for (int k = 0; k < count; k++) {
                    const real *row = here[k] + what.operand[k].near[n];
#pragma unroll
                    for (int v = 0; v < EACH; v++) {
                        const real number = combine(__ldg(row + place[k][v]), scales[k]);
                        product[v] = k ? combine(product[v], number) : number;
                    }
                }
#pragma unroll
                for (int v = 0; v < EACH; v++) part[v].add(product[v]);
            }
#pragma unroll
            for (int v = 0; v < EACH; v++) sum[v].add(part[v]);
        }
#pragma unroll
        for (int v = 0; v < EACH; v++)
            if (first + v * THREADS < what.panel)
                finish(what, begin_of(what, panel) + first + v * THREADS, sum[v].value(), largest, smallest);
    }
    note(what.extremes, largest, smallest);
}

// Kernels of their own, because registers are given out for the one that needs most.
#define REDUCE_ENTRIES(K) \
    extern "C" __global__ void __launch_bounds__(THREADS) reduce_entries_##K(const Reduction what) { over_entries<K>(what); }
REDUCE_ENTRIES(0)
REDUCE_ENTRIES(1)
REDUCE_ENTRIES(2)
REDUCE_ENTRIES(3)
REDUCE_ENTRIES(4)
REDUCE_ENTRIES(5)
REDUCE_ENTRIES(6)

extern "C" __global__ void __launch_bounds__(THREADS) reduce_terms(const Reduction what) {
    // Shared memory has no constructors.
    __shared__ double room[THREADS * sizeof(Total) / sizeof(double)];
    Total *parts = reinterpret_cast<Total *>(room);
    const index_t panel = blockIdx.x / what.panel;
    const int place = (int)(blockIdx.x % what.panel);
    const unsigned terms = (unsigned)(what.far_terms * what.near_terms), near_terms = (unsigned)what.near_terms;
    Total sum;
    for (unsigned r = threadIdx.x; r < terms; r += THREADS) {
        real product = NEUTRAL;
        for (int k = 0; k < what.operands; k++) {
            const Operand &each = what.operand[k];
            const index_t offset = each.panels[panel] + each.places[place] + each.far[r / near_terms];
            product = combine(product, combine(each.table[offset + each.near[r % near_terms]], scale_of(each)));
        }
        sum.add(product);
    }
    parts[threadIdx.x] = sum;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x].add(parts[threadIdx.x + half]);
    }
    if (threadIdx.x < 32) {
        word largest = 0, smallest = 0;
        if (threadIdx.x == 0) finish(what, begin_of(what, panel) + place, parts[0].value(), largest, smallest);
        note(what.extremes, largest, smallest);
    }
}

extern "C" __global__ void carry(const Reduction what) {
    for (index_t n = (index_t)blockIdx.x * THREADS + threadIdx.x; n < what.entries; n += (index_t)gridDim.x * THREADS)
        what.out[n] = what.operand[0].table[n];
}

// Not a copy, because that would wait behind those of tables.
extern "C" __global__ void relay(const Reduction what) {
    for (index_t n = threadIdx.x; n < what.entries * 2; n += THREADS) {
        const index_t at = n / 2 * 4 + n % 2;
        what.extremes[at] = ((volatile const word *)what.operand[0].lead)[at];
    }
}

// A part of a table in two places, in runs of `width` vectors side by side. It is cut into equal shares, each of which
// begins somewhere, on any device; inside a share runs are the states of some axes, the fastest last. Distances are
// vectors. In the order of `entries_gpu.exchanged`.
struct __align__(16) Vector {
    unsigned long long one, other;
};
struct Exchange {
    index_t width, runs, axes, shares;
    struct {
        index_t states, to, from;
    } axis[MOST_AXES];
    struct {
        Vector *to;
        const Vector *from;
    } share[MOST_SHARES];
};

// Where a piece of a share lies; `n`: of all pieces of all shares, which come in turns, so that all links are busy.
// Divisions of 32 bits, because those of 64 would take longer than the copies; the host sees to it that they do.
struct Piece {
    Vector *to;
    const Vector *from;
    unsigned first;

    __device__ __forceinline__ Piece(const Exchange &what, unsigned n, unsigned pieces, unsigned vectors) {
        const unsigned shares = (unsigned)what.shares, share = n % shares;
        unsigned run = n / shares / pieces;
        first = n / shares % pieces * vectors;
        to = what.share[share].to + first, from = what.share[share].from + first;
        for (int k = (int)what.axes - 1; k >= 0; k--) {
            const unsigned states = (unsigned)what.axis[k].states, state = run % states;
            run /= states;
            to += state * what.axis[k].to, from += state * what.axis[k].from;
        }
    }
};

// A warp takes so many vectors of a run at a time, its threads neighbours of each other, all loads before the first store:
// what counts is how many bytes are on their way. Four blocks would fit a multiprocessor: no more registers than leave room
// for other kernels.
extern "C" __global__ void __launch_bounds__(THREADS, 4) exchange(const Exchange what) {
    const unsigned pieces = (unsigned)((what.width + 32 * EACH_VECTORS - 1) / (32 * EACH_VECTORS));
    const unsigned all = (unsigned)what.shares * (unsigned)what.runs * pieces, lane = threadIdx.x % 32;
    for (unsigned n = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; n < all; n += gridDim.x * (THREADS / 32)) {
        const Piece piece(what, n, pieces, 32 * EACH_VECTORS);
        Vector vector[EACH_VECTORS];
#pragma unroll
        for (int v = 0; v < EACH_VECTORS; v++)
            if (piece.first + lane + 32 * v < what.width) vector[v] = piece.from[lane + 32 * v];
#pragma unroll
        for (int v = 0; v < EACH_VECTORS; v++)
            if (piece.first + lane + 32 * v < what.width) piece.to[lane + 32 * v] = vector[v];
    }
}

#if __CUDA_ARCH__ >= 900
// Bulk copies of a thread, through shared memory (PTX ISA, cp.async.bulk). A barrier counts the bytes that have come.
__device__ __forceinline__ unsigned shared_address(const void *at) { return (unsigned)__cvta_generic_to_shared(at); }

__device__ __forceinline__ void bring(void *to, const void *from, unsigned bytes, const unsigned long long *barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void wait_for(const unsigned long long *barrier, unsigned parity) {
    asm volatile("{\n\t.reg .pred done;\n\tagain:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra again;\n\t}"
                 :: "r"(shared_address(barrier)), "r"(parity) : "memory");
}

__device__ __forceinline__ void take_out(void *to, const void *from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
#endif

// The same for long runs: the first thread of a block has BULK_STAGES pieces on their way, in shared memory. It takes a
// warp's registers and no time of arithmetic, so that contractions go on beside it as if they were alone.
extern "C" __global__ void __launch_bounds__(32) exchange_runs(const Exchange what) {
    const unsigned pieces = (unsigned)((what.width + BULK_VECTORS - 1) / BULK_VECTORS);
    const unsigned all = (unsigned)what.shares * (unsigned)what.runs * pieces;
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(128) Vector stage[BULK_STAGES][BULK_VECTORS];
    __shared__ unsigned long long barrier[BULK_STAGES];
    if (threadIdx.x) return;
    for (int s = 0; s < BULK_STAGES; s++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(barrier + s)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    Vector *to[BULK_STAGES];
    unsigned bytes[BULK_STAGES];
    // Piece `n` of this block is under way in stage `n % BULK_STAGES`.
    const unsigned own = blockIdx.x < all ? (all - blockIdx.x - 1) / gridDim.x + 1 : 0;
    for (unsigned n = 0; n < own + BULK_STAGES - 2; n++) {
        if (n < own) {
            const unsigned s = n % BULK_STAGES;
            const Piece piece(what, blockIdx.x + n * gridDim.x, pieces, BULK_VECTORS);
            const index_t left = what.width - piece.first;
            to[s] = piece.to, bytes[s] = (unsigned)(left < BULK_VECTORS ? left : BULK_VECTORS) * sizeof(Vector);
            // The piece before has left this stage: of those that go out, all but the latest have been read.
            asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            bring(stage[s], piece.from, bytes[s], barrier + s);
        }
        if (n >= BULK_STAGES - 2) {
            const unsigned m = n - (BULK_STAGES - 2), s = m % BULK_STAGES;
            wait_for(barrier + s, m / BULK_STAGES & 1);
            take_out(to[s], stage[s], bytes[s]);
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#else
    for (unsigned n = blockIdx.x; n < all; n += gridDim.x) {
        const Piece piece(what, n, pieces, BULK_VECTORS);
        for (unsigned v = threadIdx.x; v < BULK_VECTORS && piece.first + v < what.width; v += 32) piece.to[v] = piece.from[v];
    }
#endif
}

// What several devices found of some steps, first tasks and others, as if they were one.
extern "C" __global__ void gather(const Reduction what) {
    for (index_t n = threadIdx.x; n < what.entries * 2; n += THREADS) {
        word largest = 0;
        for (int k = 0; k < what.operands; k++) {
            const volatile word *words = what.operand[k].lead + n / 2 * 4 + n % 2;
            for (int part = 0; part < 2; part++) largest = words[part * 2] > largest ? words[part * 2] : largest;
        }
        what.extremes[n / 2 * 4 + n % 2] = largest;
    }
}
