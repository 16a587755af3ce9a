// What the kernels of hidden Markov models have in common: number formats, meetings of all blocks, and the way of both
// operands of a product to shared memory.
//
// A launch does many ticks, and all blocks of its grid wait for each other between them, so they have to be on the
// device together (a cooperative launch). Rows are never marked restrict: other blocks write them within a launch.

#ifdef DOUBLE
typedef double Number;
typedef double2 Vector;
#else
typedef float Number;
typedef float4 Vector;
#endif

#ifdef DOUBLE
#define LARGER(one, other) ((one) > (other) ? (one) : (other))
#define FUSED(one, other, total) fma(one, other, total)
#else
#define LARGER(one, other) fmaxf(one, other)
#define FUSED(one, other, total) fmaf(one, other, total)
#endif

enum { LANES = sizeof(Vector) / sizeof(Number), WARPS = THREADS / 32, MANY = SIDE * SIDE };

static __device__ __forceinline__ void unpack(const Vector &from, Number *to) { *(Vector *)to = from; }

static __device__ __forceinline__ Number larger(Number one, Number other) { return LARGER(one, other); }

// What a term of a product does to the result.
static __device__ __forceinline__ Number fold(Number total, Number one, Number other) {
#ifdef SUMS
    return FUSED(one, other, total);
#else
    return larger(total, one + other);
#endif
}

// All blocks wait until every one is here; what they wrote before is seen afterwards. `round` counts these meetings.
static __device__ void meet(unsigned long long *barrier, unsigned long long &round) {
    __syncthreads();
    round++;
    if (threadIdx.x == 0) {
        // For the whole block: the barrier above has put its writes before this.
        __threadfence();
        atomicAdd(barrier, 1ull);
        while (*(volatile unsigned long long *)barrier < round * gridDim.x) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
}

// A product in tiles: a block has SIDE * R rows and SIDE * 8 columns of results in registers, R x 8 in each thread, while
// DEPTH terms at a time of both operands go through shared memory, two such pieces of which have room there.
template <int R> struct Tile {
    enum { ROWS = SIDE * R, COLUMNS = SIDE * 8, ROW_PITCH = ROWS + 4, COLUMN_PITCH = COLUMNS + 4 };
    enum { SIZE = DEPTH * (ROW_PITCH + COLUMN_PITCH), VECTORS = DEPTH / LANES };
    enum { ROW_LOADS = (ROWS * VECTORS + MANY - 1) / MANY, COLUMN_LOADS = (COLUMNS * VECTORS + MANY - 1) / MANY };
};

// Which row and column of a tile a result is.
template <int R> static __device__ __forceinline__ int row_of(int r) { return threadIdx.x / SIDE * R + r; }

static __device__ __forceinline__ int column_of(int c) {
    return c / 4 * SIDE * 4 + threadIdx.x % SIDE * 4 + c % 4;
}

// DEPTH terms: of the rows at `a`, and behind them of the columns.
template <int R> static __device__ __forceinline__ void fold_tile(const Number *a, Number (&total)[R][8]) {
    typedef Tile<R> T;
    const Number *b = a + DEPTH * T::ROW_PITCH;
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        alignas(16) Number one[R], other[8];
#pragma unroll
        for (int r = 0; r < R; r++) one[r] = a[i * T::ROW_PITCH + row_of<R>(r)];
#pragma unroll
        for (int c = 0; c < 8; c++) other[c] = b[i * T::COLUMN_PITCH + column_of(c)];
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int c = 0; c < 8; c++) total[r][c] = fold(total[r][c], one[r], other[c]);
    }
}

// What a thread brings of the lines of an operand, `stride` numbers each, DEPTH terms from term `k` * DEPTH on. Behind the
// last line it is that one again. fixed: nobody writes there meanwhile.
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
