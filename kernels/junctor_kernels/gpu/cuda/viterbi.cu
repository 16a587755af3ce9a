// Most probable paths of hidden Markov models. Rows and ticks as in viterbi.py.
//
// Maxima are never above 0, so of their bits, taken as unsigned integers, the smallest is the largest number; all bits
// set is what nobody has written yet.

#ifdef DOUBLE
typedef unsigned long long Bits;
#define BITS_OF(x) ((Bits)__double_as_longlong(x))
#define NOTHING __longlong_as_double(0xfff0000000000000ll)
#else
typedef unsigned Bits;
#define BITS_OF(x) __float_as_uint(x)
#define NOTHING __uint_as_float(0xff800000u)
#endif

// Columns of the matrix: [states][stride], or where it is sparse, begins of columns, states and numbers. Ticks count from
// the first of the block: `starts` says where the rows of each begin, and rows of tick `first` are there. `which` has the
// row of `emissions` for each row. Of the parts of columns that are a block's, `kept` stay in its shared memory and
// `cached` in the cache of the device.
struct Work {
    const Number *columns;
    const long long *begins;
    const int *froms;
    const Number *numbers, *start, *emissions;
    const int *which;
    const long long *starts;
    Number *trellis, *maxima;
    int *path;
    unsigned long long *barrier;
    long long states, stride, first, last, ticks, going_on, kept, cached;

    __device__ long long count(long long t) const { return starts[t + 1] - starts[t]; }
    __device__ Number *row(long long t) const { return trellis + starts[t] * stride; }
    __device__ const Number *emission(long long row) const { return emissions + which[row] * stride; }
};

static __device__ __forceinline__ Number nothing() { return NOTHING; }

static __device__ __forceinline__ Number largest_of_warp(Number x) {
    for (int offset = 16; offset; offset /= 2) x = larger(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// A warp makes a row of maxima: emissions added, the largest entry subtracted. `from` may be the row itself.
static __device__ void settle_row(const Work &w, const Number *from, Number *row, const Number *emission) {
    const int lane = threadIdx.x % 32;
    Number top = nothing();
    for (long long k = lane * LANES; k < w.stride; k += 32 * LANES) {
        alignas(16) Number x[LANES], e[LANES];
        unpack(__ldcg((const Vector *)(from + k)), x), unpack(*(const Vector *)(emission + k), e);
        for (int n = 0; n < LANES; n++)
            if (k + n < w.states) top = larger(top, x[n] + e[n]);
    }
    top = largest_of_warp(top);
    const Number by = top > nothing() ? top : 0;
    for (long long k = lane * LANES; k < w.stride; k += 32 * LANES) {
        alignas(16) Number x[LANES], e[LANES];
        unpack(__ldcg((const Vector *)(from + k)), x), unpack(*(const Vector *)(emission + k), e);
        for (int n = 0; n < LANES; n++) x[n] = k + n < w.states ? x[n] + e[n] - by : nothing();
        *(Vector *)(row + k) = *(const Vector *)x;
    }
}

// All warps of the grid make the rows of a tick, from the maxima that lie there or from `from`.
static __device__ void settle(const Work &w, long long t, const Number *from) {
    for (long long n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; n < w.count(t);
         n += (long long)gridDim.x * (blockDim.x / 32)) {
        Number *row = w.row(t) + n * w.stride;
        settle_row(w, from ? from : row, row, w.emission(w.starts[t] + n));
    }
}

extern "C" __global__ void begin(const Work w) { settle(w, 0, w.start); }

// Many sequences: the (max, +) product of the rows of a tick with the matrix, in tiles. The terms of all tiles are one
// line that is cut into as many equal pieces as there are blocks (stream-K); where a tile was cut, its parts meet in
// memory, in any order.
template <int R>
static __device__ void tile(
    const Work &w, const Number *before, Number *after, long long count, long long row, long long column, long long k,
    long long end, bool whole) {
    typedef Tile<R> T;
    SHARED(Number, shared, 2 * T::SIZE);
    Number total[R][8];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < 8; c++) total[r][c] = nothing();
    Vector rows[T::ROW_LOADS], columns[T::COLUMN_LOADS];
    const Number *from = before + row * w.stride, *matrix = w.columns + column * w.stride;
    const auto load = [&](long long k) {
        fetch(rows, from, w.stride, T::ROWS, count - row, k, false);
        fetch(columns, matrix, w.stride, T::COLUMNS, w.states - column, k, true);
    };
    const auto put = [&](int half) {
        Number *to = shared + half * T::SIZE;
        place(rows, to, T::ROW_PITCH, T::ROWS), place(columns, to + DEPTH * T::ROW_PITCH, T::COLUMN_PITCH, T::COLUMNS);
    };
    load(k), put(0);
    __syncthreads();
    for (int half = 0; k < end; k++, half ^= 1) {
        if (k + 1 < end) load(k + 1);
        fold_tile<R>(shared + half * T::SIZE, total);
        if (k + 1 < end) put(half ^ 1);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const long long n = row + row_of<R>(r), j = column + column_of(c);
            if (n >= count || j >= w.states) continue;
            Number *at = after + n * w.stride + j;
            if (whole)
                *at = total[r][c];
            else
                atomicMin((Bits *)at, BITS_OF(total[r][c]));
        }
}

template <int R> static __device__ void many(const Work &w) {
    typedef Tile<R> T;
    unsigned long long round = 0;
    for (long long t = w.first + 1; t <= w.last; t++) {
        const long long count = w.count(t), across = (count + T::ROWS - 1) / T::ROWS, chunks = w.stride / DEPTH;
        const long long units = across * ((w.states + T::COLUMNS - 1) / T::COLUMNS) * chunks;
        const long long end = units * (blockIdx.x + 1) / gridDim.x;
        for (long long u = units * blockIdx.x / gridDim.x; u < end;) {
            const long long number = u / chunks, k = u % chunks, last = k + end - u < chunks ? k + end - u : chunks;
            tile<R>(
                w, w.row(t - 1), w.row(t), count, number % across * T::ROWS, number / across * T::COLUMNS, k, last,
                last - k == chunks);
            u += last - k;
        }
        meet(w.barrier, round);
        settle(w, t, nullptr);
        meet(w.barrier, round);
    }
}

extern "C" __global__ void __launch_bounds__(MANY, 2) many_2(const Work w) { many<2>(w); }
extern "C" __global__ void __launch_bounds__(MANY, 2) many_4(const Work w) { many<4>(w); }
#ifndef DOUBLE
extern "C" __global__ void __launch_bounds__(MANY, 2) many_8(const Work w) { many<8>(w); }
#endif

// A sparse matrix: W threads share the terms of a column for one row.
template <int W> static __device__ void sparse(const Work &w) {
    unsigned long long round = 0;
    for (long long t = w.first + 1; t <= w.last; t++) {
        const Number *before = w.row(t - 1);
        const long long items = w.count(t) * w.states, step = (long long)gridDim.x * THREADS / W;
        // All threads of a warp take as many turns.
        for (long long turn = ((long long)blockIdx.x * THREADS + threadIdx.x) / W, n = 0; n * step < items; n++, turn += step) {
            const long long r = turn / w.states, j = turn % w.states;
            Number best = nothing();
            if (turn < items)
                for (long long k = w.begins[j] + threadIdx.x % W; k < w.begins[j + 1]; k += W)
                    best = larger(best, before[r * w.stride + w.froms[k]] + w.numbers[k]);
            for (int offset = W / 2; offset; offset /= 2) best = larger(best, __shfl_xor_sync(0xffffffffu, best, offset));
            if (turn < items && threadIdx.x % W == 0) w.row(t)[r * w.stride + j] = best;
        }
        meet(w.barrier, round);
        settle(w, t, nullptr);
        meet(w.barrier, round);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sparse_1(const Work w) { sparse<1>(w); }
extern "C" __global__ void __launch_bounds__(THREADS) sparse_32(const Work w) { sparse<32>(w); }

// The larger of two sums; of equal ones that of the smaller state.
struct Best {
    Number sum;
    int state;

    __device__ void join(Number other, int from) {
        if (other > sum || (other == sum && from < state)) sum = other, state = from;
    }
};

// A block goes back along one sequence: it finds every predecessor again, by the sums that the maximum was taken of.
// `path` has the states of the last tick for the first `going_on` sequences.
extern "C" __global__ void __launch_bounds__(THREADS) trace(const Work w) {
    SHARED(Best, bests, WARPS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long slot = blockIdx.x;
    for (long long t = w.ticks - 1; t >= 0; t--) {
        if (slot >= w.count(t) || (t == w.ticks - 1 && slot < w.going_on)) continue;
        const Number *row = w.row(t) + slot * w.stride;
        const bool ends = t == w.ticks - 1 || slot >= w.count(t + 1);
        const int state = ends ? 0 : w.path[w.starts[t + 1] + slot];
        Best best = {nothing(), 0x7fffffff};
        if (!ends && w.begins) {
            for (long long k = w.begins[state] + threadIdx.x; k < w.begins[state + 1]; k += THREADS)
                best.join(row[w.froms[k]] + w.numbers[k], w.froms[k]);
        } else {
            const Number *column = w.columns + state * w.stride;
            for (long long k = threadIdx.x * LANES; k < w.stride; k += THREADS * LANES) {
                alignas(16) Number x[LANES], a[LANES];
                unpack(*(const Vector *)(row + k), x);
                if (!ends) unpack(__ldg((const Vector *)(column + k)), a);
                for (int n = 0; n < LANES; n++) best.join(ends ? x[n] : x[n] + a[n], (int)k + n);
            }
        }
        for (int offset = 16; offset; offset /= 2) {
            const Number sum = __shfl_xor_sync(0xffffffffu, best.sum, offset);
            best.join(sum, __shfl_xor_sync(0xffffffffu, best.state, offset));
        }
        if (lane == 0) bests[warp] = best;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int n = 1; n < WARPS; n++) best.join(bests[n].sum, bests[n].state);
            // Where nothing is possible any state will do, and it is the first.
            w.path[w.starts[t] + slot] = best.sum > nothing() ? best.state : 0;
        }
        __syncthreads();
    }
}
