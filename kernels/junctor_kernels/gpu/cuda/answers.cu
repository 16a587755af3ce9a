// Posteriors of a block on their way out, beside the next block: from [variable] [case] [state] to the answers of all rows,
// [target] [row] [state], which lie in memory of the host.

// The posterior of a target over the cases of a block, from case `first` on. Its row of `targets` has where it comes from,
// its row there, and its states. Number: format of the answers, which is single where only doubtful rows are computed in
// double.
template <class Number> struct Posterior {
    const int source, size;
    const real *found, *settled;
    const short *states;

    __device__ __forceinline__ Posterior(const Run *its, const int *target, int first)
        : source(target[0]), size(target[2]), found(its->posteriors + target[1] * its->cases + (index_t)first * target[2]),
          settled(its->settled + target[1]), states(its->states + target[1] * its->cases + first) {}

    __device__ __forceinline__ Number at(int b, int e) const {
        if (source == FOUND) return (Number)found[b * size + e];
        if (source == OBSERVED_STATE) return states[b] == e ? 1 : 0;
        return (Number)settled[e];
    }
};

// its: the record of the block itself, because `run` is that of the next one by now. A target has in `targets` also the
// states of all targets before.
template <class Number> __device__ __forceinline__ void write_posteriors(const Run *its) {
    const int pieces = (int)((its->filled + WRITE_CASES - 1) / WRITE_CASES);
    for (int piece = blockIdx.x; piece < its->asked * pieces; piece += gridDim.x) {
        const int *target = its->targets + TARGET_COLUMNS * (piece / pieces);
        const int size = target[2], first = piece % pieces * WRITE_CASES;
        const int cases = its->filled - first < WRITE_CASES ? (int)its->filled - first : WRITE_CASES;
        const Posterior<Number> posterior(its, target, first);
        const index_t *rows = its->rows + first;
        Number *out = static_cast<Number *>(its->answers) + target[3] * its->answered;
        // Whole lines of the bus for every warp, wherever rows follow each other.
        const int shift = (int)((size_t)(out + rows[0] * size) / sizeof(Number) % 32);
#pragma unroll 4
        for (int k = (int)threadIdx.x - shift; k < cases * size; k += blockDim.x) {
            if (k < 0) continue;
            const int b = k / size, e = k % size;
            out[rows[b] * size + e] = posterior.at(b, e);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, WRITE_SHARE) write_single(const Run *its) {
    write_posteriors<float>(its);
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, WRITE_SHARE) write_double(const Run *its) {
    write_posteriors<double>(its);
}
