// Expected counts of enumerated components: P(family | e) of each, times its weight, added up by entry in a fixed order,
// in double precision. A block is a run of components, those of a pattern together; `row_trees.pieces` makes its lists:
//
//     multiply     a thread multiplies what a component has of a factor each, for some states: a part of a row.
//     weigh        a thread makes of the row of a component the posterior of each state, times its weight.
//     add_pieces   a thread adds up one state of a piece: components of a pattern that share the base of a factor.
//     add_units    a warp adds up all of an entry, and joins it to what the blocks before had there.
//
// In the source come first the constants of `counts_gpu.py`, then sums.cu. Nothing is contracted to multiply-adds: the
// numbers of a row are those of `_enumerate` in counts.py, bit by bit.

// `bases` are [factors][components] for each part, `offsets` [factors][states], whose lines have whole multiples of
// TOGETHER entries. `members` are places of rows; a unit is a state of a piece, and `units` has those of each entry, one
// after the other. `unit_sums` and `sums` are two tables each, the second one of what rounding took.
struct Block {
    const double *values, *weights;
    const int *parts, *bases, *offsets, *members, *piece_starts, *unit_starts, *piece_of, *units, *entries, *entry_starts;
    double *rows, *totals, *unit_sums, *sums;
    long long part_count, task_count, component_count, unit_count, entry_count, size;
};

// The last part that begins at or before `n`, by a column.
static __device__ __forceinline__ const int *part_of(const Block &b, int n, int column) {
    int number = 0;
    for (int high = (int)b.part_count - 1; number < high;) {
        const int middle = (number + high + 1) / 2;
        if (b.parts[middle * PART_COLUMNS + column] <= n)
            number = middle;
        else
            high = middle - 1;
    }
    return b.parts + number * PART_COLUMNS;
}

extern "C" __global__ void __launch_bounds__(THREADS) multiply(const Block b) {
    const int n = blockIdx.x * THREADS + threadIdx.x;
    if (n >= b.task_count) return;
    const int *part = part_of(b, n, TASKS), task = n - part[TASKS], count = part[COUNT];
    // Neighbours have the same states: what they read of a table lies close together.
    const int i = task % count, first = task / count * TOGETHER, states = part[STATES], factors = part[FACTORS];
    const int lines = (states + TOGETHER - 1) / TOGETHER * TOGETHER;
    const int *bases = b.bases + part[BASES] + i, *offsets = b.offsets + part[OFFSETS] + first;
    double *row = b.rows + part[ROWS] + i * states + first, products[TOGETHER];
#pragma unroll
    for (int s = 0; s < TOGETHER; s++) products[s] = 1;
    for (int f = 0; f < factors; f++) {
        const double *table = b.values + bases[f * count];
        const int4 *line = reinterpret_cast<const int4 *>(offsets + f * lines);
#pragma unroll
        for (int s = 0; s < TOGETHER; s += 4) {
            const int4 at = line[s / 4];
            products[s] *= table[at.x], products[s + 1] *= table[at.y];
            products[s + 2] *= table[at.z], products[s + 3] *= table[at.w];
        }
    }
#pragma unroll
    for (int s = 0; s < TOGETHER; s++)
        if (first + s < states) row[s] = products[s];
}

extern "C" __global__ void __launch_bounds__(THREADS) weigh(const Block b) {
    const int n = blockIdx.x * THREADS + threadIdx.x;
    if (n >= b.component_count) return;
    const int *part = part_of(b, n, FIRST), states = part[STATES];
    double *row = b.rows + part[ROWS] + (n - part[FIRST]) * states, total = 0;
    // One after the other, as on the CPU.
#pragma unroll 8
    for (int s = 0; s < states; s++) total += row[s];
    b.totals[n] = total;
    // What may have lost digits counts nothing here: the CPU takes it over.
    const double share = total >= LEAST_TOTAL ? b.weights[n] / total : 0;
#pragma unroll 8
    for (int s = 0; s < states; s++) row[s] *= share;
}

extern "C" __global__ void __launch_bounds__(THREADS) add_pieces(const Block b) {
    const int unit = blockIdx.x * THREADS + threadIdx.x;
    if (unit >= b.unit_count) return;
    const int piece = b.piece_of[unit], end = b.piece_starts[piece + 1];
    // Neighbours have the states of a row: it is read in whole lines.
    const double *column = b.rows + (unit - b.unit_starts[piece]);
    Sum sums;
#pragma unroll 8
    for (int at = b.piece_starts[piece]; at < end; at++) sums.add(column[b.members[at]]);
    b.unit_sums[unit] = sums.sum, b.unit_sums[b.unit_count + unit] = sums.rest;
}

extern "C" __global__ void __launch_bounds__(THREADS) add_units(const Block b) {
    const int n = (blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (n >= b.entry_count) return;
    Sum sums;
    for (int at = b.entry_starts[n] + lane; at < b.entry_starts[n + 1]; at += 32) {
        const int unit = b.units[at];
        sums.add({b.unit_sums[unit], b.unit_sums[b.unit_count + unit]});
    }
    for (int offset = 16; offset; offset /= 2)
        sums.add({__shfl_xor_sync(0xffffffffu, sums.sum, offset), __shfl_xor_sync(0xffffffffu, sums.rest, offset)});
    if (lane == 0) sums.join(b.sums + b.entries[n], b.size);
}
