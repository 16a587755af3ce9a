// Most probable paths of one to eight sequences: the matrix is read once a tick, and what is read meets all rows. That is
// what a tick takes, so as much of the matrix as there is room for stays near.

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

// Some of a number of things, spread evenly among them.
struct Spread {
    unsigned rate;

    __device__ Spread(int chosen, int things) {
        const unsigned long long one = 1ull << 20;
        rate = things > 0 && chosen > 0 ? (unsigned)(chosen < things ? (chosen * one + things - 1) / things : one) : 0;
    }
    // How many of the things before this one are chosen.
    __device__ __forceinline__ int before(int thing) const { return (int)((unsigned long long)thing * rate >> 20); }
    __device__ __forceinline__ bool has(int thing) const { return before(thing + 1) > before(thing); }
};

enum Place { KEPT, CACHED, PASSING };

template <int PLACE> static __device__ __forceinline__ Vector read_part(const Number *at) {
    if (PLACE == KEPT) return *(const Vector *)at;
    return PLACE == CACHED ? __ldg((const Vector *)at) : __ldcs((const Vector *)at);
}

// The columns of a block, which are the same in every tick, in parts that its warps take in turn. Some parts of each warp
// stay in shared memory and some in the cache of the device, the others pass through; warps have their turns for those
// that are near at different times, so that memory is always busy.
struct Columns {
    const Number *numbers;
    Number *here;
    long long stride;
    int own, items, length, turns, start;
    Spread kept, cached;

    __device__ Columns(const Work &w, Number *rest, int own)
        : numbers(w.columns), stride(w.stride), own(own), items(own * SEGMENTS), length((int)(w.stride / SEGMENTS)),
          turns((items + WARPS - 1 - warp()) / WARPS), start(turns ? warp() % turns : 0),
          kept((int)w.kept / WARPS + (warp() < w.kept % WARPS), turns), cached((int)w.cached, items - (int)w.kept) {
        const int before = (int)w.kept / WARPS * warp() + (warp() < w.kept % WARPS ? warp() : (int)w.kept % WARPS);
        here = rest + (long long)before * length;
    }

    static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
    // The number of a turn as the choices count them.
    __device__ __forceinline__ int rank(int turn) const { return turn + start < turns ? turn + start : turn + start - turns; }
    __device__ __forceinline__ Number *kept_part(int rank) const { return here + kept.before(rank) * length; }
    __device__ __forceinline__ bool is_cached(int rank) const {
        return cached.has(warp() * turns + rank - kept.before(rank));
    }
    __device__ __forceinline__ const Number *part(int turn) const {
        const int item = warp() + turn * WARPS;
        return numbers + ((long long)blockIdx.x + item / SEGMENTS * gridDim.x) * stride + item % SEGMENTS * length;
    }

    // Lanes bring what they read themselves later.
    __device__ void keep() const {
        for (int turn = 0; turn < turns; turn++)
            for (int k = threadIdx.x % 32 * LANES; kept.has(rank(turn)) && k < length; k += 32 * LANES)
                *(Vector *)(kept_part(rank(turn)) + k) = __ldcs((const Vector *)(part(turn) + k));
    }
};

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

// The maxima of a block's own columns.
template <int ROWS>
static __device__ __forceinline__ void fold_columns(
    const Work &w, const Columns &columns, const Number *rows, Number *parts, Number *out) {
    const int lane = threadIdx.x % 32, length = columns.length;
    for (int turn = 0; turn < columns.turns; turn++) {
        const int item = columns.warp() + turn * WARPS, rank = columns.rank(turn);
        const Number *operand = rows + item % SEGMENTS * length;
        Number best[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) best[r] = nothing();
        if (columns.kept.has(rank))
            fold_part<ROWS, KEPT>(columns.kept_part(rank), operand, w.stride, length, best);
        else if (columns.is_cached(rank))
            fold_part<ROWS, CACHED>(columns.part(turn), operand, w.stride, length, best);
        else
            fold_part<ROWS, PASSING>(columns.part(turn), operand, w.stride, length, best);
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

// Every block makes the rows of the tick before for itself, in its shared memory, and then the maxima of its columns.
template <int ROWS> static __device__ void few(const Work &w) {
    DYNAMIC(Number, rows);
    const int own = (int)(w.states + gridDim.x - 1 - blockIdx.x) / gridDim.x;
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
