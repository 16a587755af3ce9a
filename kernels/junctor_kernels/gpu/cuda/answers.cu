// Posteriors of a block on their way out, beside the next block: from [variable] [case] [state] to the answers of all rows,
// [target] [row] [state], which lie in memory of the host.

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
