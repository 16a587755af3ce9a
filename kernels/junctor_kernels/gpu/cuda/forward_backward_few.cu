// Forward and backward rows of one to eight sequences: the matrix is read once a tick, and what is read meets all rows. As
// much of it as there is room for stays near. Every block makes the rows of a tick for itself, in its shared memory, and then the sums of its panels.

// Threads that share a panel, with two columns each, and terms that they have under way. A run begins some numbers
// further on in shared memory, so that threads at different runs read different banks.
enum { SHARERS = PANEL / 2, UNDER_WAY = sizeof(Number) == 4 ? 32 : 16 };

#ifdef DOUBLE
typedef double2 Pair;
#else
typedef float2 Pair;
#endif

static __device__ __forceinline__ int place_of(int k) { return k + k / RUN * SKEW; }

// What is known of a tick before the one ahead of it is done.
template <int ROWS, bool BACK> struct Ahead {
    int count;
    bool ends[ROWS];
    Number leasts[ROWS];
    const Number *emissions[ROWS];

    __device__ __forceinline__ void look(const Work &w, long long t) {
        count = (int)w.count(t);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= count) continue;
            const int which = w.which[w.starts[t] + r];
            emissions[r] = w.emissions + which * w.stride, leasts[r] = w.leasts[which];
            ends[r] = BACK && w.ends(t, r);
        }
    }
};

// Of what every block does for itself, this thread's part that is also done for all.
static __device__ __forceinline__ bool is_mine(int turn) {
    return (turn * WARPS + threadIdx.x / 32) % gridDim.x == blockIdx.x;
}

// Rows of a tick come to shared memory with their emissions, or as they are given. Returns the largest entries that this
// thread met. On the way back forward rows meet backward rows.
template <int ROWS, bool BACK>
static __device__ __forceinline__ void bring(
    const Work &w, long long t, const Ahead<ROWS, BACK> &ahead, Number *rows, int pitch, Number (&top)[ROWS]) {
    const Number step = *w.least;
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = 0;
    for (int k = threadIdx.x * LANES, turn = 0; k < w.stride; k += THREADS * LANES, turn++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            alignas(16) Number x[LANES], e[LANES], other[LANES];
            Number *here = rows + r * pitch + place_of(k), *row = w.row(t) + r * w.stride + k;
            if (r >= ahead.count) {
                for (int n = 0; n < LANES; n++) x[n] = 0;
            } else if (!BACK && t == w.first) {
                unpack(__ldcg((const Vector *)row), x);
            } else {
                unpack(__ldcg((const Vector *)(w.sum(t, r) + k)), x);
                unpack(*(const Vector *)(ahead.emissions[r] + k), e);
                const bool mine = is_mine(turn);
                if (mine) unpack(BACK ? __ldcg((const Vector *)row) : *(const Vector *)here, other);
                bool lost = false;
                for (int n = 0; n < LANES; n++) {
                    if (ahead.ends[r]) x[n] = k + n < w.states;
                    if (mine) {
                        lost |= BACK ? leaves(x[n], ahead.leasts[r], 1) : leaves(other[n], step, ahead.leasts[r]);
                        other[n] = times(other[n], x[n]);
                    }
                    x[n] *= e[n];
                    top[r] = larger(top[r], x[n]);
                }
                if (BACK && mine && !w.stays()) *(Vector *)row = *(const Vector *)other;
                if (lost) w.lost[r] = 1;
            }
            *(Vector *)here = *(const Vector *)x;
        }
}

// Rows are scaled, in shared memory and forwards for the trellis.
template <int ROWS, bool BACK>
static __device__ __forceinline__ void scale(
    const Work &w, long long t, int count, Number *rows, int pitch, Number *tops, Number (&top)[ROWS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Number step = BACK ? *w.least : (Number)1;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int offset = 16; offset; offset /= 2) top[r] = larger(top[r], __shfl_xor_sync(0xffffffffu, top[r], offset));
        if (lane == 0) tops[warp * ROWS + r] = top[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        top[r] = lane < WARPS ? tops[lane * ROWS + r] : 0;
        for (int offset = 16; offset; offset /= 2) top[r] = larger(top[r], __shfl_xor_sync(0xffffffffu, top[r], offset));
        if (r >= count) continue;
        int power;
        const Number factor = factor_of(top[r], power);
        if (threadIdx.x == 0 && blockIdx.x == 0) {
            if (!BACK) w.powers[r] += power;
            if (BACK && top[r] == 0) w.lost[r] = 1;
        }
        top[r] = factor;
    }
    for (int k = threadIdx.x * LANES, turn = 0; k < w.stride; k += THREADS * LANES, turn++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= count) continue;
            alignas(16) Number x[LANES];
            Number *here = rows + r * pitch + place_of(k);
            unpack(*(const Vector *)here, x);
            for (int n = 0; n < LANES; n++) x[n] *= top[r];
            *(Vector *)here = *(const Vector *)x;
            if (!is_mine(turn)) continue;
            for (int n = 0; n < LANES; n++)
                if (leaves(x[n], step, 1)) w.lost[r] = 1;
            if (!BACK) *(Vector *)(w.row(t) + r * w.stride + k) = *(const Vector *)x;
        }
}

enum Place { KEPT, CACHED, PASSING };

// Numbers of a unit in shared memory: a run of terms of a panel, some further on than the one before, as above.
enum { UNIT = RUN * PANEL, UNIT_PITCH = UNIT + PANEL };

template <int PLACE> static __device__ __forceinline__ Pair read_pair(const Pair *at) {
    if (PLACE == KEPT) return *at;
    return PLACE == CACHED ? __ldg(at) : __ldcs(at);
}

// The terms of a unit from its first to its last, for two columns.
template <int ROWS, int PLACE>
static __device__ __forceinline__ void fold_unit(
    const Pair *from, const Number *operand, int pitch, int terms, Number (&total)[ROWS][2]) {
    for (int k = 0; k < terms; k += UNDER_WAY) {
        Pair a[UNDER_WAY];
#pragma unroll
        for (int n = 0; n < UNDER_WAY; n++) a[n] = read_pair<PLACE>(from + (k + n) * SHARERS);
#pragma unroll
        for (int n = 0; n < UNDER_WAY; n += LANES)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                alignas(16) Number x[LANES];
                unpack(*(const Vector *)(operand + r * pitch + k + n), x);
#pragma unroll
                for (int i = 0; i < LANES; i++) {
                    total[r][0] = fold(total[r][0], a[n + i].x, x[i]);
                    total[r][1] = fold(total[r][1], a[n + i].y, x[i]);
                }
            }
    }
}

// The panels of a block, the same ones in every tick, in units. The first ones stay in its shared memory, the next in the
// cache of the device, the others pass through; as many as threads have room for are under way together.
struct Panels {
    const Number *numbers;
    Number *here;
    long long stride;
    int own, runs, kept, cached;

    __device__ Panels(const Work &w, Number *here)
        : numbers(w.panels), here(here), stride(w.stride), runs((int)((w.stride + RUN - 1) / RUN)) {
        own = (int)(w.stride / PANEL + gridDim.x - 1 - blockIdx.x) / gridDim.x;
        kept = w.kept < units() ? (int)w.kept : units(), cached = kept + (int)w.cached;
    }

    __device__ __forceinline__ int units() const { return own * runs; }
    __device__ __forceinline__ int terms(int unit) const {
        const int first = unit % runs * RUN;
        return stride - first < RUN ? (int)stride - first : RUN;
    }
    __device__ __forceinline__ const Number *unit(int unit) const {
        const long long panel = blockIdx.x + (long long)(unit / runs) * gridDim.x;
        return numbers + (panel * stride + unit % runs * RUN) * PANEL;
    }

    __device__ void keep() const {
        for (int n = 0; n < kept; n++)
            for (int k = threadIdx.x * LANES; k < terms(n) * PANEL; k += THREADS * LANES)
                *(Vector *)(here + n * UNIT_PITCH + k) = __ldcs((const Vector *)(unit(n) + k));
    }
};

// The sums of a block's own panels: threads that share a panel take one run of its terms at a time.
template <int ROWS>
static __device__ __forceinline__ void fold_panels(
    const Work &w, const Panels &panels, const Number *rows, int pitch, Number *parts, Number *out) {
    const int sharer = threadIdx.x % SHARERS, runs = panels.runs;
    for (int unit = threadIdx.x / SHARERS; unit < panels.units(); unit += THREADS / SHARERS) {
        const Pair *from = (const Pair *)panels.unit(unit) + sharer;
        const Number *operand = rows + place_of(unit % runs * RUN);
        const int terms = panels.terms(unit);
        Number total[ROWS][2];
#pragma unroll
        for (int r = 0; r < ROWS; r++) total[r][0] = total[r][1] = 0;
        if (unit < panels.kept) {
            const Pair *here = (const Pair *)(panels.here + unit * UNIT_PITCH) + sharer;
            fold_unit<ROWS, KEPT>(here, operand, pitch, terms, total);
        } else if (unit < panels.cached) {
            fold_unit<ROWS, CACHED>(from, operand, pitch, terms, total);
        } else {
            fold_unit<ROWS, PASSING>(from, operand, pitch, terms, total);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < 2; c++) parts[(unit * ROWS + r) * PANEL + 2 * sharer + c] = total[r][c];
    }
    __syncthreads();
    for (int n = threadIdx.x; n < panels.own * ROWS * PANEL; n += THREADS) {
        const int panel = n / (ROWS * PANEL), r = n / PANEL % ROWS, column = n % PANEL;
        Number total = parts[(panel * runs * ROWS + r) * PANEL + column];
        for (int run = 1; run < runs; run++) total += parts[((panel * runs + run) * ROWS + r) * PANEL + column];
        if (r < w.most) out[r * w.stride + (blockIdx.x + (long long)panel * gridDim.x) * PANEL + column] = total;
    }
}

template <int ROWS, bool BACK> static __device__ void few(const Work &w) {
    DYNAMIC(Number, here);
    const Panels panels(w, here);
    const int pitch = (int)w.stride + panels.runs * SKEW, ahead_by = BACK ? -1 : 1;
    Number *rows = here + w.kept * UNIT_PITCH, *tops = rows + ROWS * pitch, *parts = tops + WARPS * ROWS;
    panels.keep();
    unsigned long long round = 0;
    Ahead<ROWS, BACK> ahead;
    ahead.look(w, BACK ? w.last : w.first);
    for (long long t = BACK ? w.last : w.first; !BACK || t > w.first; t += ahead_by) {
        Number top[ROWS];
        bring<ROWS, BACK>(w, t, ahead, rows, pitch, top);
        if (BACK || t > w.first) scale<ROWS, BACK>(w, t, ahead.count, rows, pitch, tops, top);
        if (!BACK && t == w.last) break;
        __syncthreads();
        fold_panels<ROWS>(w, panels, rows, pitch, parts, w.sum(t + ahead_by, 0));
        ahead.look(w, t + ahead_by);
        meet(w.barrier, round);
    }
}

BOTH(few_1, THREADS, 1, few<1,)
BOTH(few_2, THREADS, 1, few<2,)
BOTH(few_4, THREADS, 1, few<4,)
BOTH(few_8, THREADS, 1, few<8,)
