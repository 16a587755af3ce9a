// Log-likelihoods and posteriors of hidden Markov models. Rows, scales and what may get lost as in
// forward_backward_cpu.py, and bit by bit the same numbers: a result is the sum of runs of RUN terms, each added up from
// its first term to its last (fused), and the runs from the first to the last. So blocks of a grid may share the runs.
//
// With -ftz numbers below the normal ones are zero here. Rows have none; a posterior may, and goes round that.

// A matrix lies in panels of PANEL columns, [panels][stride][PANEL], or where it is sparse, by columns. Ticks count from
// the first of the block. `sums` has the products of a tick before anything else happens to them, [levels][most][stride],
// two levels by odd and even ticks; on the way back these are the backward rows. With more levels, one for each tick, they
// all stay there, and so do the forward rows. `parts` has them in runs, [runs][most][stride].
// `scaled`: backward rows with their emissions, [most][stride]. `before`: ticks before the block, `going_on`: sequences
// that go on behind it. Of the matrix, each block has `kept` and `cached` units near, as below.
// `powers`: of two that rows were divided by, `lost`: whether a number may have left the range, of each sequence.
struct Work {
    const Number *panels;
    const long long *begins;
    const int *froms;
    const Number *numbers, *start, *emissions, *leasts, *least;
    const int *which;
    const long long *starts;
    Number *trellis, *sums, *parts, *scaled;
    long long *powers;
    int *lost;
    double *totals;
    unsigned long long *barrier;
    long long states, stride, most, levels, first, last, ticks, before, going_on, kept, cached;

    __device__ long long count(long long t) const { return starts[t + 1] - starts[t]; }
    __device__ Number *row(long long t) const { return trellis + starts[t] * stride; }
    __device__ Number *sum(long long t, long long slot) const { return sums + ((before + t) % levels * most + slot) * stride; }
    __device__ bool stays() const { return levels > 2; }
    __device__ bool ends(long long t, long long slot) const {
        return slot >= (t + 1 < ticks ? count(t + 1) : going_on);
    }
};

#ifdef DOUBLE
#define TINY 4.5e-308
static __device__ __forceinline__ double times(double one, double other) { return one * other; }
static __device__ __forceinline__ double widened(double x) { return x; }
static __device__ __forceinline__ double narrowed(double x) { return x; }
static __device__ __forceinline__ double rounded_product(double one, double other) { return __dmul_rn(one, other); }
static __device__ __forceinline__ double rounded_sum(double one, double other) { return __dadd_rn(one, other); }
#else
#define TINY 2.4e-38f
static __device__ __forceinline__ float rounded_product(float one, float other) { return __fmul_rn(one, other); }
static __device__ __forceinline__ float rounded_sum(float one, float other) { return __fadd_rn(one, other); }
#ifdef __CUDA_ARCH__
static __device__ __forceinline__ float times(float one, float other) {
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(one), "f"(other));
    return product;
}
static __device__ __forceinline__ double widened(float x) {
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    return wide;
}
static __device__ __forceinline__ float narrowed(double x) {
    float narrow;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(narrow) : "d"(x));
    return narrow;
}
#else
static __device__ __forceinline__ float times(float one, float other) { return one * other; }
static __device__ __forceinline__ double widened(float x) { return x; }
static __device__ __forceinline__ float narrowed(double x) { return (float)x; }
#endif
#endif

// Whether a number that is not zero may leave the range where it meets these factors.
static __device__ __forceinline__ bool leaves(Number x, Number one, Number other) {
    return x > 0 && x * one * other < (Number)TINY;
}

// The power of two that brings a row's largest entry below 1, and what to multiply the row by.
static __device__ __forceinline__ Number factor_of(Number largest, int &power) {
    power = 0;
    if (largest > 0) frexp(largest, &power);
    return ldexp((Number)1, -power);
}

static __device__ Number largest_of_block(Number x, Number *tops) {
    for (int offset = 16; offset; offset /= 2) x = larger(x, __shfl_xor_sync(0xffffffffu, x, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = x;
    __syncthreads();
    for (int n = 0; n < blockDim.x / 32; n++) x = larger(x, tops[n]);
    return x;
}

// A block makes a row of what its `runs` sum up to, [most][stride] apart: forwards with the emissions, scaled; on the
// way back the backward row meets the forward row of its tick, and goes on with the emissions, scaled. `before` is the
// row that the sums were made of, nothing at the first tick.
template <bool BACK>
static __device__ void settle_row(
    const Work &w, long long t, long long slot, const Number *from, int runs, const Number *before, Number *tops) {
    const long long line = w.starts[t] + slot;
    const Number *emission = w.emissions + w.which[line] * w.stride;
    const Number least = w.leasts[w.which[line]], step = before || BACK ? *w.least : (Number)1;
    const bool ends = BACK && w.ends(t, slot);
    Number *row = w.trellis + line * w.stride, *out = BACK ? w.scaled + slot * w.stride : row, top = 0;
    bool lost = false;
    for (long long k = threadIdx.x; k < w.stride; k += blockDim.x) {
        Number x = __ldcg(from + k);
        for (int n = 1; n < runs; n++) x += __ldcg(from + n * w.most * w.stride + k);
        if (ends) x = k < w.states;
        if (BACK) {
            if (w.stays())
                w.sum(t, slot)[k] = x;
            else
                row[k] = times(__ldcg(row + k), x);
            lost |= leaves(x, least, 1);
        } else {
            lost |= leaves(before ? __ldcg(before + k) : x, step, least);
        }
        x *= emission[k];
        out[k] = x, top = larger(top, x);
    }
    int power;
    top = largest_of_block(top, tops);
    const Number factor = factor_of(top, power);
    for (long long k = threadIdx.x; k < w.stride; k += blockDim.x) {
        const Number x = out[k] * factor;
        out[k] = x, lost |= leaves(x, BACK ? step : (Number)1, 1);
    }
    if (lost || (BACK && top == 0)) w.lost[slot] = 1;
    if (!BACK && threadIdx.x == 0) w.powers[slot] += power;
}

extern "C" __global__ void __launch_bounds__(THREADS) begin(const Work w) {
    SHARED(Number, tops, 32);
    for (long long slot = blockIdx.x; slot < w.count(0); slot += gridDim.x)
        settle_row<false>(w, 0, slot, w.start, 1, nullptr, tops);
}

// The rows of a tick; `runs` of 0: their sums are whole.
template <bool BACK> static __device__ void settle(const Work &w, long long t, int runs, Number *tops) {
    for (long long slot = blockIdx.x; slot < w.count(t); slot += gridDim.x) {
        const Number *from = runs ? w.parts + slot * w.stride : w.sum(t, slot);
        settle_row<BACK>(w, t, slot, from, runs ? runs : 1, BACK ? nullptr : w.row(t - 1) + slot * w.stride, tops);
    }
}

// Ticks one after the other, `product` making sums of the rows of a tick.
template <class Product> static __device__ void go_forward(const Work &w, int runs, Product product) {
    SHARED(Number, tops, 32);
    unsigned long long round = 0;
    for (long long t = w.first + 1; t <= w.last; t++) {
        product(w.row(t - 1), w.count(t), t);
        meet(w.barrier, round);
        settle<false>(w, t, runs, tops);
        meet(w.barrier, round);
    }
}

// The sums of the last tick are there, and those of the first are left whole.
template <class Product> static __device__ void go_back(const Work &w, int runs, Product product) {
    SHARED(Number, tops, 32);
    unsigned long long round = 0;
    for (long long t = w.last; t > w.first; t--) {
        settle<true>(w, t, t == w.last ? 0 : runs, tops);
        meet(w.barrier, round);
        product(w.scaled, w.count(t), t - 1);
        meet(w.barrier, round);
    }
    const long long items = runs ? w.count(w.first + 1) * w.stride : 0, step = (long long)gridDim.x * blockDim.x;
    for (long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x; n < items; n += step) {
        Number x = __ldcg(w.parts + n);
        for (int r = 1; r < runs; r++) x += __ldcg(w.parts + r * w.most * w.stride + n);
        w.sum(w.first, 0)[n] = x;
    }
}

template <bool BACK, class Product> static __device__ void walk(const Work &w, int runs, Product product) {
    if constexpr (BACK)
        go_back(w, runs, product);
    else
        go_forward(w, runs, product);
}

// What a thread brings of a tile's columns: they lie in panels, PANEL numbers of a line of them together.
template <int N> static __device__ __forceinline__ void fetch_panels(
    Vector (&held)[N], const Number *panels, long long stride, int lines, long long left, long long k) {
    constexpr int across = PANEL / LANES, vectors = DEPTH * across;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int v = threadIdx.x + n * MANY, panel = v / vectors;
        if (panel >= lines) continue;
        const Number *at = panels + (panel < left ? panel : left - 1) * stride * PANEL;
        held[n] = __ldg((const Vector *)(at + k * DEPTH * PANEL) + v % vectors);
    }
}

template <int N> static __device__ __forceinline__ void place_panels(const Vector (&held)[N], Number *to, int pitch, int lines) {
    constexpr int across = PANEL / LANES, vectors = DEPTH * across;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int v = threadIdx.x + n * MANY, panel = v / vectors;
        if (panel < lines) *(Vector *)(to + v % vectors / across * pitch + panel * PANEL + v % across * LANES) = held[n];
    }
}

// One run of terms of a tile; in every slot of `parts` somebody writes once.
template <int R>
static __device__ void run_of_tile(
    const Work &w, const Number *before, Number *after, long long count, long long row, long long column, long long run) {
    typedef Tile<R> T;
    constexpr int panels = T::COLUMNS / PANEL;
    SHARED(Number, shared, 2 * T::SIZE);
    Number total[R][8];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < 8; c++) total[r][c] = 0;
    Vector rows[T::ROW_LOADS], columns[T::COLUMN_LOADS];
    const Number *from = before + row * w.stride, *matrix = w.panels + column * w.stride;
    const long long end = ((run + 1) * RUN < w.stride ? (run + 1) * RUN : w.stride) / DEPTH;
    const auto load = [&](long long k) {
        fetch(rows, from, w.stride, T::ROWS, count - row, k, false);
        fetch_panels(columns, matrix, w.stride, panels, (w.stride - column) / PANEL, k);
    };
    const auto put = [&](int half) {
        Number *to = shared + half * T::SIZE;
        place(rows, to, T::ROW_PITCH, T::ROWS);
        place_panels(columns, to + DEPTH * T::ROW_PITCH, T::COLUMN_PITCH, panels);
    };
    long long k = run * (RUN / DEPTH);
    load(k), put(0);
    __syncthreads();
    for (int half = 0; k < end; k++, half ^= 1) {
        if (k + 1 < end) load(k + 1);
        fold_tile<R>(shared + half * T::SIZE, total);
        if (k + 1 < end) put(half ^ 1);
        __syncthreads();
    }
    after += run * w.most * w.stride;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const long long n = row + row_of<R>(r), j = column + column_of(c);
            if (n < count && j < w.stride) after[n * w.stride + j] = total[r][c];
        }
}

// Many sequences: tiles, run by run, divided among the blocks. Those that follow each other read the same columns.
template <int R, bool BACK> static __device__ void many(const Work &w) {
    typedef Tile<R> T;
    const long long runs = (w.stride + RUN - 1) / RUN, columns = (w.stride + T::COLUMNS - 1) / T::COLUMNS;
    walk<BACK>(w, (int)runs, [&](const Number *before, long long count, long long) {
        const long long across = (count + T::ROWS - 1) / T::ROWS, units = across * columns * runs;
        for (long long u = blockIdx.x; u < units; u += gridDim.x)
            run_of_tile<R>(
                w, before, w.parts, count, u % across * T::ROWS, u / across / runs * T::COLUMNS, u / across % runs);
    });
}

// A sparse matrix: a thread adds up the terms of a column for one row, rounding twice, as there.
template <bool BACK> static __device__ void sparse(const Work &w) {
    walk<BACK>(w, 0, [&](const Number *before, long long count, long long t) {
        const long long items = count * w.stride, step = (long long)gridDim.x * blockDim.x;
        for (long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x; n < items; n += step) {
            const long long slot = n / w.stride, j = n % w.stride;
            const long long end = j < w.states ? w.begins[j + 1] : 0;
            Number total = 0;
#pragma unroll 4
            for (long long k = j < w.states ? w.begins[j] : 0; k < end; k++)
                total = rounded_sum(total, rounded_product(__ldcg(before + slot * w.stride + w.froms[k]), w.numbers[k]));
            w.sum(t, slot)[j] = total;
        }
    });
}

#define BOTH(name, threads, blocks, ...)                                                                               \
    extern "C" __global__ void __launch_bounds__(threads, blocks) forward_##name(const Work w) { __VA_ARGS__ false>(w); } \
    extern "C" __global__ void __launch_bounds__(threads, blocks) backward_##name(const Work w) { __VA_ARGS__ true>(w); }

BOTH(many_2, MANY, 2, many<2,)
BOTH(many_4, MANY, 2, many<4,)
#ifndef DOUBLE
BOTH(many_8, MANY, 2, many<8,)
#endif
BOTH(sparse, THREADS, 1, sparse<)

// A warp divides a row by its total, which 32 lanes add up in double precision. The first tick of all meets its backward
// rows here; that of any other block is the last one of the block before.
extern "C" __global__ void __launch_bounds__(THREADS) normalise(const Work w) {
    const int lane = threadIdx.x % 32;
    const long long rows = w.starts[w.ticks], step = (long long)gridDim.x * (blockDim.x / 32);
    for (long long n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; n < rows; n += step) {
        if (w.before && n < w.count(0)) continue;
        Number *row = w.trellis + n * w.stride;
        const bool meets = n < w.count(0) && !w.ends(0, n);
        double total = 0;
        for (long long k = lane; k < w.states; k += 32) {
            if (meets) row[k] = times(row[k], w.sum(0, n)[k]);
            total += widened(row[k]);
        }
        for (int offset = 16; offset; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
        for (long long k = lane; k < w.states && total > 0; k += 32) row[k] = narrowed(widened(row[k]) / total);
        if (lane == 0) w.totals[n] = total;
    }
}
