// Most probable paths of one to eight sequences: a step is bound by reading the matrix, so as much of it as there is room
// for stays where it is near.

// What is known of a tick before the one ahead of it is done: its rows, and where their emissions lie.
template <int ROWS> struct Ahead {
    int count;
    const Number *emissions[ROWS];

    __device__ __forceinline__ void look(const Work &w, long long t) {
        count = (int)w.count(t);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (r < count) emissions[r] = w.emission(w.starts[t] + r);
    }
};

// The maxima of a tick, with their emissions, or the rows of the first tick as they are given, come to shared memory.
// Returns the largest entries that this thread met.
template <int ROWS>
static __device__ __forceinline__ void bring(
    const Work &w, long long t, const Ahead<ROWS> &ahead, Number *rows, Number (&top)[ROWS]) {
    const Number *maxima = w.maxima + t % 2 * ROWS * w.stride;
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = nothing();
    for (long long k = threadIdx.x * LANES; k < w.stride; k += THREADS * LANES)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            alignas(16) Number x[LANES], e[LANES];
            if (r >= ahead.count) {
                for (int n = 0; n < LANES; n++) x[n] = nothing();
            } else if (t == w.first) {
                unpack(*(const Vector *)(w.row(t) + r * w.stride + k), x);
            } else {
                unpack(__ldcg((const Vector *)(maxima + r * w.stride + k)), x);
                unpack(*(const Vector *)(ahead.emissions[r] + k), e);
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
    const Work &w, long long t, int count, Number *rows, Number *tops, Number (&top)[ROWS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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

// A block takes the same parts of columns in every tick (a warp takes a quarter of a column at a time, so that all have
// about as much to do). Some of them stay in its shared memory, some in the cache of the device, the others come from
// memory each time and go at once. They are spread evenly, so that memory is always busy.
struct Spread {
    unsigned rate;

    __device__ Spread(long long chosen, long long items) {
        const unsigned long long one = 1ull << 20;
        rate = items > 0 ? (unsigned)(chosen < items ? chosen * one / items : one) : 0;
    }
    // How many of the items before this one are chosen.
    __device__ __forceinline__ int before(int item) const { return (int)((unsigned long long)item * rate >> 20); }
    __device__ __forceinline__ bool has(int item) const { return before(item + 1) > before(item); }
};

enum Place { KEPT, CACHED, PASSING };

template <int PLACE> static __device__ __forceinline__ Vector read_part(const Number *at) {
    if (PLACE == KEPT) return *(const Vector *)at;
    return PLACE == CACHED ? __ldg((const Vector *)at) : __ldcs((const Vector *)at);
}

template <int ROWS, int PLACE>
static __device__ __forceinline__ void fold_part(
    const Number *numbers, const Number *rows, long long stride, int length, Number (&best)[ROWS]) {
#pragma unroll 6
    for (int k = threadIdx.x % 32 * LANES; k < length; k += 32 * LANES) {
        alignas(16) Number a[LANES], x[LANES];
        unpack(read_part<PLACE>(numbers + k), a);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            unpack(*(const Vector *)(rows + r * stride + k), x);
            for (int n = 0; n < LANES; n++) best[r] = larger(best[r], x[n] + a[n]);
        }
    }
}

// The columns of a block, and what of them is near.
struct Columns {
    const Number *numbers;
    Number *here;
    long long stride;
    int own, items, length;
    // Among all parts, and among those that are not kept.
    Spread kept, cached;

    __device__ Columns(const Work &w, Number *here, long long own)
        : numbers(w.columns), here(here), stride(w.stride), own((int)own), items((int)own * SEGMENTS),
          length((int)(w.stride / SEGMENTS)), kept(w.kept, items), cached(w.cached, items - w.kept) {}

    __device__ __forceinline__ const Number *part(int item) const {
        return numbers + ((long long)blockIdx.x + item / SEGMENTS * gridDim.x) * stride + item % SEGMENTS * length;
    }

    // Lanes bring what they read themselves later.
    __device__ void keep() const {
        for (int item = threadIdx.x / 32; item < items; item += WARPS)
            for (int k = threadIdx.x % 32 * LANES; kept.has(item) && k < length; k += 32 * LANES)
                *(Vector *)(here + (long long)kept.before(item) * length + k) = __ldcs((const Vector *)(part(item) + k));
    }
};

// The maxima of a block's own columns.
template <int ROWS>
static __device__ __forceinline__ void fold_columns(
    const Work &w, const Columns &columns, const Number *rows, Number *parts, Number *out) {
    const int lane = threadIdx.x % 32, length = columns.length;
    for (int item = threadIdx.x / 32; item < columns.items; item += WARPS) {
        const Number *operand = rows + item % SEGMENTS * length;
        Number best[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) best[r] = nothing();
        if (columns.kept.has(item)) {
            const Number *here = columns.here + columns.kept.before(item) * length;
            fold_part<ROWS, KEPT>(here, operand, w.stride, length, best);
        } else if (columns.cached.has(item - columns.kept.before(item))) {
            fold_part<ROWS, CACHED>(columns.part(item), operand, w.stride, length, best);
        } else {
            fold_part<ROWS, PASSING>(columns.part(item), operand, w.stride, length, best);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            best[r] = largest_of_warp(best[r]);
            if (lane == 0) parts[item * ROWS + r] = best[r];
        }
    }
    __syncthreads();
    for (int n = threadIdx.x; n < columns.own * ROWS; n += THREADS) {
        const int column = n / ROWS, r = n % ROWS;
        Number best = nothing();
        for (int s = 0; s < SEGMENTS; s++) best = larger(best, parts[(column * SEGMENTS + s) * ROWS + r]);
        out[r * w.stride + blockIdx.x + (long long)column * gridDim.x] = best;
    }
}

// One to eight sequences: the matrix is read once a tick, and what is read meets all rows. Every block makes the rows of
// the tick before for itself, in its shared memory, and then the maxima of its columns.
template <int ROWS> static __device__ void few(const Work &w) {
    DYNAMIC(Number, rows);
    const long long own = (w.states + gridDim.x - 1 - blockIdx.x) / gridDim.x;
    Number *here = rows + ROWS * w.stride, *tops = here + w.kept * (w.stride / SEGMENTS), *parts = tops + WARPS * ROWS;
    const Columns columns(w, here, own);
    columns.keep();
    unsigned long long round = 0;
    Ahead<ROWS> ahead;
    ahead.look(w, w.first);
    for (long long t = w.first; t <= w.last; t++) {
        Number top[ROWS];
        bring<ROWS>(w, t, ahead, rows, top);
        if (t > w.first) lower<ROWS>(w, t, ahead.count, rows, tops, top);
        if (t == w.last) break;
        __syncthreads();
        fold_columns<ROWS>(w, columns, rows, parts, w.maxima + (t + 1) % 2 * ROWS * w.stride);
        ahead.look(w, t + 1);
        meet(w.barrier, round);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) few_1(const Work w) { few<1>(w); }
extern "C" __global__ void __launch_bounds__(THREADS) few_2(const Work w) { few<2>(w); }
extern "C" __global__ void __launch_bounds__(THREADS) few_4(const Work w) { few<4>(w); }
extern "C" __global__ void __launch_bounds__(THREADS) few_8(const Work w) { few<8>(w); }
