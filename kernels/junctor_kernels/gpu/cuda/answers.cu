// Posteriors of a block on their way out, beside the next block: from [variable] [case] [state] to the answers of all rows,
// [target] [row] [state], which lie in memory of the host.

// its: the record of the block itself, because `run` is that of the next one by now. A target has in `targets` where its
// posterior comes from, its row there, its states, and those of all targets before. Number: format of the answers, which
// is single where only doubtful rows are computed in double.
template <class Number> __device__ __forceinline__ void write_posteriors(const Run *its) {
    const int pieces = (int)((its->filled + WRITE_CASES - 1) / WRITE_CASES);
    for (int piece = blockIdx.x; piece < its->asked * pieces; piece += gridDim.x) {
        const int *target = its->targets + TARGET_COLUMNS * (piece / pieces);
        const int source = target[0], row = target[1], size = target[2], first = piece % pieces * WRITE_CASES;
        const int cases = its->filled - first < WRITE_CASES ? (int)its->filled - first : WRITE_CASES;
        const real *found = its->posteriors + row * its->cases + (index_t)first * size;
        const short *states = its->states + row * its->cases + first;
        const index_t *rows = its->rows + first;
        Number *out = static_cast<Number *>(its->answers) + target[3] * its->answered;
        // Whole lines of the bus for every warp, wherever rows follow each other.
        const int shift = (int)((size_t)(out + rows[0] * size) / sizeof(Number) % 32);
#pragma unroll 4
        for (int k = (int)threadIdx.x - shift; k < cases * size; k += blockDim.x) {
            if (k < 0) continue;
            const int b = k / size, e = k % size;
            real value;
            if (source == FOUND) value = found[k];
            else if (source == OBSERVED_STATE) value = states[b] == e ? 1 : 0;
            else value = its->settled[row + e];
            out[rows[b] * size + e] = (Number)value;
        }
    }
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, WRITE_SHARE) write_single(const Run *its) {
    write_posteriors<float>(its);
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, WRITE_SHARE) write_double(const Run *its) {
    write_posteriors<double>(its);
}
