// Most probable paths of hidden Markov models. Rows and ticks as in viterbi.py; a launch does many ticks, and all blocks
// of its grid wait for each other between them, so they have to be on the device together (a cooperative launch).
//
// Maxima are never above 0, so of their bits, taken as unsigned integers, the smallest is the largest number; all bits
// set is what nobody has written yet. Rows are never marked restrict: other blocks write them within a launch.

#ifdef DOUBLE
typedef double Number;
typedef double2 Vector;
typedef unsigned long long Bits;
#define BITS_OF(x) ((Bits)__double_as_longlong(x))
#define NOTHING __longlong_as_double(0xfff0000000000000ll)
#define LARGER(one, other) ((one) > (other) ? (one) : (other))
#else
typedef float Number;
typedef float4 Vector;
typedef unsigned Bits;
#define BITS_OF(x) __float_as_uint(x)
#define NOTHING __uint_as_float(0xff800000u)
#define LARGER(one, other) fmaxf(one, other)
#endif

enum { LANES = sizeof(Vector) / sizeof(Number), WARPS = THREADS / 32, MANY = SIDE * SIDE, SEGMENTS = 4 };

// Columns of the matrix: [states][stride], or where it is sparse, begins of columns, states and numbers. Ticks count from
// the first of the block: `starts` says where the rows of each begin, and rows of tick `first` are there. `which` has the
// row of `emissions` for each row.
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
    long long states, stride, first, last, ticks, going_on;

    __device__ long long count(long long t) const { return starts[t + 1] - starts[t]; }
    __device__ Number *row(long long t) const { return trellis + starts[t] * stride; }
    __device__ const Number *emission(long long row) const { return emissions + which[row] * stride; }
};

static __device__ __forceinline__ Number nothing() { return NOTHING; }

static __device__ __forceinline__ Number larger(Number one, Number other) { return LARGER(one, other); }

static __device__ __forceinline__ void unpack(const Vector &from, Number *to) { *(Vector *)to = from; }

static __device__ __forceinline__ Number largest_of_warp(Number x) {
    for (int offset = 16; offset; offset /= 2) x = larger(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// All blocks wait until every one is here; what they wrote before is seen afterwards. `round` counts these meetings.
static __device__ void meet(const Work &w, unsigned long long &round) {
    __threadfence();
    __syncthreads();
    round++;
    if (threadIdx.x == 0) {
        atomicAdd(w.barrier, 1ull);
        while (*(volatile unsigned long long *)w.barrier < round * gridDim.x) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
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

// The maxima of a tick, with their emissions, or the rows of the first tick as they are given, come to shared memory.
// Returns the largest entries that this thread met.
template <int ROWS>
static __device__ __forceinline__ void bring(const Work &w, long long t, Number *rows, Number (&top)[ROWS]) {
    const int count = (int)w.count(t);
    const Number *maxima = w.maxima + t % 2 * ROWS * w.stride;
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = nothing();
    for (long long k = threadIdx.x * LANES; k < w.stride; k += THREADS * LANES)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            alignas(16) Number x[LANES], e[LANES];
            if (r >= count) {
                for (int n = 0; n < LANES; n++) x[n] = nothing();
            } else if (t == w.first) {
                unpack(*(const Vector *)(w.row(t) + r * w.stride + k), x);
            } else {
                unpack(__ldcg((const Vector *)(maxima + r * w.stride + k)), x);
                unpack(*(const Vector *)(w.emission(w.starts[t] + r) + k), e);
                for (int n = 0; n < LANES; n++) {
                    x[n] = k + n < w.states ? x[n] + e[n] : nothing();
                    top[r] = larger(top[r], x[n]);
                }
            }
            *(Vector *)(rows + r * w.stride + k) = *(const Vector *)x;
        }
}

// The largest entry of each row is subtracted, in shared memory and for the trellis, of which every block writes a part.
template <int ROWS>
static __device__ __forceinline__ void lower(
    const Work &w, long long t, Number *rows, Number *tops, Number (&top)[ROWS]) {
    const int count = (int)w.count(t), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        top[r] = largest_of_warp(top[r]);
        if (lane == 0) tops[warp * ROWS + r] = top[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        top[r] = largest_of_warp(lane < WARPS ? tops[lane * ROWS + r] : nothing());
        if (!(top[r] > nothing())) top[r] = 0;
    }
    for (long long k = threadIdx.x * LANES, turn = 0; k < w.stride; k += THREADS * LANES, turn++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= count) continue;
            alignas(16) Number x[LANES];
            unpack(*(const Vector *)(rows + r * w.stride + k), x);
            for (int n = 0; n < LANES; n++) x[n] -= top[r];
            *(Vector *)(rows + r * w.stride + k) = *(const Vector *)x;
            if ((turn * WARPS + warp) % gridDim.x == blockIdx.x)
                *(Vector *)(w.row(t) + r * w.stride + k) = *(const Vector *)x;
        }
}

// The maxima of a block's own columns: a warp takes a quarter of a column at a time, so that all have about as much to do.
template <int ROWS>
static __device__ __forceinline__ void fold_columns(
    const Work &w, const Number *rows, Number *parts, Number *out, long long own) {
    const long long length = w.stride / SEGMENTS;
    const int lane = threadIdx.x % 32;
    for (long long item = threadIdx.x / 32; item < own * SEGMENTS; item += WARPS) {
        const long long column = blockIdx.x + item / SEGMENTS * gridDim.x, from = item % SEGMENTS * length;
        const Number *numbers = w.columns + column * w.stride + from;
        Number best[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) best[r] = nothing();
#pragma unroll 4
        for (int k = lane * LANES; k < length; k += 32 * LANES) {
            alignas(16) Number a[LANES], x[LANES];
            unpack(__ldg((const Vector *)(numbers + k)), a);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                unpack(*(const Vector *)(rows + r * w.stride + from + k), x);
                for (int n = 0; n < LANES; n++) best[r] = larger(best[r], x[n] + a[n]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            best[r] = largest_of_warp(best[r]);
            if (lane == 0) parts[item * ROWS + r] = best[r];
        }
    }
    __syncthreads();
    for (long long n = threadIdx.x; n < own * ROWS; n += THREADS) {
        const long long column = n / ROWS, r = n % ROWS;
        Number best = nothing();
        for (int s = 0; s < SEGMENTS; s++) best = larger(best, parts[(column * SEGMENTS + s) * ROWS + r]);
        out[r * w.stride + blockIdx.x + column * gridDim.x] = best;
    }
}

// One to eight sequences: the matrix is read once a tick, and what is read meets all rows. Every block makes the rows of
// the tick before for itself, in its shared memory, and then the maxima of its columns.
template <int ROWS> static __device__ void few(const Work &w) {
    DYNAMIC(Number, rows);
    const long long own = (w.states + gridDim.x - 1 - blockIdx.x) / gridDim.x;
    Number *parts = rows + ROWS * w.stride, *tops = parts + own * SEGMENTS * ROWS;
    unsigned long long round = 0;
    for (long long t = w.first; t <= w.last; t++) {
        Number top[ROWS];
        bring<ROWS>(w, t, rows, top);
        if (t > w.first) lower<ROWS>(w, t, rows, tops, top);
        if (t == w.last) break;
        __syncthreads();
        fold_columns<ROWS>(w, rows, parts, w.maxima + (t + 1) % 2 * ROWS * w.stride, own);
        meet(w, round);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) few_1(const Work w) { few<1>(w); }
extern "C" __global__ void __launch_bounds__(THREADS) few_2(const Work w) { few<2>(w); }
extern "C" __global__ void __launch_bounds__(THREADS) few_4(const Work w) { few<4>(w); }
extern "C" __global__ void __launch_bounds__(THREADS) few_8(const Work w) { few<8>(w); }

// Many sequences: the (max, +) product of the rows of a tick with the matrix. A block has SIDE * R rows and SIDE * 8
// columns of results in registers, R x 8 in each thread, while DEPTH terms at a time of both operands go through shared
// memory. The terms of all tiles are one line that is cut into as many equal pieces as there are blocks (stream-K);
// where a tile was cut, its parts meet in memory, in any order.
template <int R> struct Tile {
    enum { ROWS = SIDE * R, COLUMNS = SIDE * 8, ROW_PITCH = ROWS + 4, COLUMN_PITCH = COLUMNS + 4 };
    enum { SIZE = DEPTH * (ROW_PITCH + COLUMN_PITCH), VECTORS = DEPTH / LANES };
    enum { ROW_LOADS = (ROWS * VECTORS + MANY - 1) / MANY, COLUMN_LOADS = (COLUMNS * VECTORS + MANY - 1) / MANY };
};

template <int N> static __device__ __forceinline__ void fetch(
    Vector (&held)[N], const Number *from, long long stride, int lines, long long left, long long k, bool fixed) {
    constexpr int vectors = DEPTH / LANES;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int v = threadIdx.x + n * MANY, line = v / vectors;
        if (line >= lines) continue;
        const Number *at = from + (line < left ? line : left - 1) * stride + k * DEPTH + v % vectors * LANES;
        held[n] = fixed ? __ldg((const Vector *)at) : __ldcg((const Vector *)at);
    }
}

template <int N> static __device__ __forceinline__ void place(const Vector (&held)[N], Number *to, int pitch, int lines) {
    constexpr int vectors = DEPTH / LANES;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int v = threadIdx.x + n * MANY, line = v / vectors, k = v % vectors * LANES;
        if (line >= lines) continue;
        alignas(16) Number x[LANES];
        unpack(held[n], x);
#pragma unroll
        for (int i = 0; i < LANES; i++) to[(k + i) * pitch + line] = x[i];
    }
}

template <int R>
static __device__ void tile(
    const Work &w, const Number *before, Number *after, long long count, long long row, long long column, long long k,
    long long end, bool whole) {
    typedef Tile<R> T;
    SHARED(Number, shared, 2 * T::SIZE);
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
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
        const Number *a = shared + half * T::SIZE, *b = a + DEPTH * T::ROW_PITCH;
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            alignas(16) Number one[R], other[8];
#pragma unroll
            for (int r = 0; r < R; r++) one[r] = a[i * T::ROW_PITCH + y * R + r];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                other[c] = b[i * T::COLUMN_PITCH + x * 4 + c];
                other[4 + c] = b[i * T::COLUMN_PITCH + SIDE * 4 + x * 4 + c];
            }
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int c = 0; c < 8; c++) total[r][c] = larger(total[r][c], one[r] + other[c]);
        }
        if (k + 1 < end) put(half ^ 1);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const long long n = row + y * R + r, j = column + (c < 4 ? x * 4 + c : SIDE * 4 + x * 4 + c - 4);
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
        meet(w, round);
        settle(w, t, nullptr);
        meet(w, round);
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
        meet(w, round);
        settle(w, t, nullptr);
        meet(w, round);
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
