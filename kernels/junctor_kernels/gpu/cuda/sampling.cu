// Samples of a row of evidence on a GPU (`junctor_kernels.sampling_layout` says what is in the arrays).
//
//     simple_*      a thread a sample: warps go through all nodes, 32 samples side by side; several_*: a few a thread.
//     wavefront_*   a block a group of samples: its threads go over the nodes of a level and the samples of the group.
//     sum_*         sums of weights, and of their squares, over the samples of a piece; `gather` adds up pieces.
//     score_*       the weights of learning samples, as integers, by the entry that each node was drawn from.
//     update_*      what nodes are drawn from moves towards that; uniform_* draws nodes uniformly.
//     shape_*       nodes are drawn from their tables times what evidence says below (beliefs.cu).
//
// A sample's states go from one kernel to the next as bits: a word holds a bit of a node's state for 32 samples. Weights
// are numbers (plain) or logarithms (logs). No sum depends on the order in which threads come.
typedef unsigned char Byte;
typedef unsigned long long Word;

struct Job {
    const int4 *nodes, *parents, *factors, *freed;
    const int *levels;
    const int4 *weighed, *slots;
    const unsigned *own;
    const Byte *own_order;
    const double *tables, *values, *soft, *said, *smallest;
    unsigned *thresholds;
    Byte *order;
    double *ratios, *chances;
    Word *scores;
    unsigned *words;
    double *weights;
    Word *largest;
    double2 *pieces, *sums;
    long long node_count, factor_count, level_count, slot_count, weighed_count, planes;
    long long first, count, group, piece_count;
    long long key0, key1, stage, high, row;
    double rate, share;
};

// Whether a sample is drawn from the tables themselves; the same for all samples of a warp, and of a wave's group.
static __device__ bool is_own(const Job &job, Word sample) {
    return job.share > 0.0 && sample % BLOCK >= BLOCK - OWN_SAMPLES;
}

// Numbers as integers of the same order, so that the largest can be found by integer maxima.
static __device__ Word ordered(double number) {
    const long long bits = __double_as_longlong(number);
    return bits < 0 ? ~(Word)bits : (Word)bits | 1ull << 63;
}

static __device__ double number_of(Word key) {
    return __longlong_as_double((long long)(key >> 63 ? key & ~(1ull << 63) : ~key));
}

static __device__ uint4 philox(const Job &job, Word sample, unsigned group) {
    unsigned one = (unsigned)sample, two = (unsigned)(sample >> 32) | (unsigned)job.stage;
    unsigned three = group | (unsigned)job.high, four = (unsigned)job.row;
    unsigned key0 = (unsigned)job.key0, key1 = (unsigned)job.key1;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const unsigned low0 = MULTIPLIER0 * one, high0 = __umulhi(MULTIPLIER0, one);
        const unsigned low1 = MULTIPLIER1 * three, high1 = __umulhi(MULTIPLIER1, three);
        one = high1 ^ two ^ key0, two = low1, three = high0 ^ four ^ key1, four = low0;
        key0 += KEY_STEP0, key1 += KEY_STEP1;
    }
    return {one >> 1, two >> 1, three >> 1, four >> 1};
}

static __device__ unsigned word_of(const uint4 &four, int which) {
    const unsigned low = which & 1 ? four.y : four.x, high = which & 1 ? four.w : four.z;
    return which & 2 ? high : low;
}

// The state of a node {first threshold, first entry, states} in a row of its table; `weighed`: of what was learned.
static __device__ int chosen(const Job &job, const int4 &node, int weighed, int row, unsigned draw) {
    const unsigned *thresholds = weighed ? job.thresholds : job.own;
    if (node.z == 2) return draw >= thresholds[node.x + row];
    const int at = node.x + row * (node.z - 1);
    int place = 0;
    while (place < node.z - 1 && draw >= thresholds[at + place]) place++;
    return node.z == 1 ? 0 : (weighed ? job.order : job.own_order)[node.y + row * node.z + place];
}

static __device__ int state_of(const unsigned *words, int plane, int planes, int lane) {
    int state = 0;
    for (int bit = 0; bit < planes; bit++) state |= (int)(words[plane + bit] >> lane & 1) << bit;
    return state;
}

// The rows, or entries, that the states of parents select for the samples of a lane; a parent is {node, stride, plane,
// planes}.
template <int EACH>
static __device__ void locate(const int4 *parents, int first, int count, const unsigned *words, int lane, int *rows) {
#pragma unroll
    for (int e = 0; e < EACH; e++) rows[e] = 0;
    for (int p = first; p < first + count; p++) {
        const int4 parent = parents[p];
        for (int bit = 0; bit < parent.w; bit++) {
            const unsigned *here = words + (parent.z + bit) * EACH;
#pragma unroll
            for (int e = 0; e < EACH; e++) rows[e] += (int)(here[e] >> lane & 1) * (parent.y << bit);
        }
    }
}

template <bool LOGS> static __device__ double times(double weight, double factor) {
    return LOGS ? weight + factor : weight * factor;
}

// The weight of a sample by the mixture: product of its ratios, and what the evidence makes of it.
template <bool LOGS> static __device__ double mixed(const Job &job, double ratio, double said) {
    const double own = job.share;
    if (!(own > 0.0)) return times<LOGS>(ratio, said);
    if (!LOGS) return said * (ratio / ((1.0 - own) + own * ratio));
    const double far = ratio > 0.0 ? ratio : 0.0;
    return said + ratio - far - log((1.0 - own) * exp(-far) + own * exp(ratio - far));
}

static __device__ double infinity() { return __longlong_as_double(0x7FF0000000000000ll); }

template <bool LOGS> static __device__ void note_largest(const Job &job, double weight) {
    Word key = ordered(weight);
    for (int offset = 16; offset; offset /= 2) {
        const Word other = __shfl_down_sync(0xFFFFFFFF, key, offset);
        key = other > key ? other : key;
    }
    if (threadIdx.x % 32 == 0) atomicMax(job.largest, key);
}

template <bool LOGS, int EACH>
static __device__ void draw_node(
    const Job &job, Word sample, int n, int j, const uint4 *draws, unsigned *words, double *ratios
) {
    const int lane = threadIdx.x % 32;
    const int4 node = job.nodes[2 * n], more = job.nodes[2 * n + 1];
    int rows[EACH], states[EACH];
    locate<EACH>(job.parents, node.w, more.x, words, lane, rows);
#pragma unroll
    for (int e = 0; e < EACH; e++)
        states[e] = chosen(job, node, more.w && !is_own(job, sample + 32 * e), rows[e], word_of(draws[e], j));
    if (more.w)
#pragma unroll
        for (int e = 0; e < EACH; e++)
            ratios[e] = times<LOGS>(ratios[e], job.ratios[node.y + rows[e] * node.z + states[e]]);
    for (int bit = 0; bit < more.z; bit++) {
        unsigned mine = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const unsigned word = __ballot_sync(0xFFFFFFFF, states[e] >> bit & 1);
            if (lane == e) mine = word;
        }
        if (lane < EACH) words[(more.y + bit) * EACH + lane] = mine;
    }
    __syncwarp();
}

// A lane has EACH samples, so that what is read of a node serves for all of them; words are [plane][sample of a lane].
template <bool LOGS, int EACH> static __device__ void simple_for(const Job &job) {
    extern __shared__ unsigned shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, nodes = (int)job.node_count;
    unsigned *words = shared + warp * job.planes * EACH;
    const long long turns = (job.count + 32 * EACH - 1) / (32 * EACH), step = gridDim.x * (long long)warps;
    for (long long turn = blockIdx.x * (long long)warps + warp; turn < turns; turn += step) {
        const Word sample = job.first + turn * 32 * EACH + lane;
        double ratios[EACH], said[EACH];
        for (int e = 0; e < EACH; e++) ratios[e] = said[e] = LOGS ? 0.0 : 1.0;
        for (int start = 0; start < nodes; start += 4) {
            uint4 draws[EACH];
#pragma unroll
            for (int e = 0; e < EACH; e++) draws[e] = philox(job, sample + 32 * e, start / 4);
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (start + j < nodes) draw_node<LOGS, EACH>(job, sample, start + j, j, draws, words, ratios);
        }
        for (int f = 0; f < job.factor_count; f++) {
            const int4 factor = job.factors[f];
            int at[EACH];
            locate<EACH>(job.parents, factor.y, factor.z, words, lane, at);
            for (int e = 0; e < EACH; e++)
                said[e] = times<LOGS>(said[e], (factor.w ? job.soft : job.values)[factor.x + at[e]]);
        }
        for (int e = 0; e < EACH; e++) {
            const long long group = turn * EACH + e, place = group * 32 + lane;
            const double weight = place < job.count ? mixed<LOGS>(job, ratios[e], said[e]) : LOGS ? -infinity() : 0.0;
            job.weights[place] = weight;
            note_largest<LOGS>(job, weight);
            for (int p = lane; p < job.planes; p += 32) job.words[group * job.planes + p] = words[p * EACH + e];
        }
        __syncwarp();
    }
}

template <bool LOGS> static __device__ void simple(const Job &job) { simple_for<LOGS, 1>(job); }
template <bool LOGS> static __device__ void several(const Job &job) { simple_for<LOGS, SEVERAL>(job); }

// The states of a group are bytes [node][sample]; the factors of a sample's weight are products over threads, of ratios
// and of what the evidence makes of it, reduced at the end.
template <bool LOGS> static __device__ void wavefront(const Job &job) {
    extern __shared__ unsigned shared[];
    double *ratios = (double *)shared, *said = ratios + blockDim.x;
    Byte *states = (Byte *)(said + blockDim.x);
    const int size = (int)job.group, sample = threadIdx.x % size, threads = blockDim.x / size;
    const Word number = job.first + blockIdx.x * (Word)size + sample;
    const bool own = is_own(job, number);
    double ratio = LOGS ? 0.0 : 1.0, factors = ratio;
    for (int level = 0; level < job.level_count; level++) {
        for (int n = job.levels[level] + threadIdx.x / size; n < job.levels[level + 1]; n += threads) {
            const int4 node = job.nodes[2 * n], more = job.nodes[2 * n + 1];
            int row = 0;
            for (int p = node.w; p < node.w + more.x; p++) {
                const int4 parent = job.parents[p];
                row += parent.y * states[parent.x * size + sample];
            }
            const int state = chosen(job, node, more.w && !own, row, word_of(philox(job, number, n / 4), n % 4));
            states[n * size + sample] = (Byte)state;
            if (more.w) ratio = times<LOGS>(ratio, job.ratios[node.y + row * node.z + state]);
        }
        __syncthreads();
    }
    for (int f = threadIdx.x / size; f < job.factor_count; f += threads) {
        const int4 factor = job.factors[f];
        int at = factor.x;
        for (int p = factor.y; p < factor.y + factor.z; p++) {
            const int4 parent = job.parents[p];
            at += parent.y * states[parent.x * size + sample];
        }
        factors = times<LOGS>(factors, (factor.w ? job.soft : job.values)[at]);
    }
    ratios[threadIdx.x] = ratio, said[threadIdx.x] = factors;
    __syncthreads();
    for (int offset = blockDim.x / 2; offset >= size; offset /= 2) {
        if (threadIdx.x < offset) {
            ratios[threadIdx.x] = times<LOGS>(ratios[threadIdx.x], ratios[threadIdx.x + offset]);
            said[threadIdx.x] = times<LOGS>(said[threadIdx.x], said[threadIdx.x + offset]);
        }
        __syncthreads();
    }
    const long long start = blockIdx.x * (long long)size;
    if (threadIdx.x < 32) {
        double mine = LOGS ? -infinity() : 0.0;
        if (threadIdx.x < size && start + threadIdx.x < job.count)
            mine = mixed<LOGS>(job, ratios[threadIdx.x], said[threadIdx.x]);
        if (threadIdx.x < size) job.weights[start + threadIdx.x] = mine;
        note_largest<LOGS>(job, mine);
    }
    for (int n = threadIdx.x; n < job.node_count; n += blockDim.x) {
        const int4 more = job.nodes[2 * n + 1];
        for (int bit = 0; bit < more.z; bit++) {
            unsigned word = 0;
            for (int s = 0; s < size; s++) word |= (unsigned)(states[n * size + s] >> bit & 1) << s;
            unsigned *to = job.words + start / 32 * job.planes + more.y + bit;
            // Groups of fewer samples share a word, which is zero before.
            if (size == 32) *to = word;
            else atomicOr(to, word << start % 32);
        }
    }
}

// The samples of a slot {node, state, plane, planes} among 32; all of them where it has no planes.
static __device__ unsigned mask_of(const Job &job, const int4 &slot, long long group) {
    unsigned mask = 0xFFFFFFFF;
    for (int bit = 0; bit < slot.w; bit++) {
        const unsigned word = job.words[group * job.planes + slot.z + bit];
        mask &= slot.y >> bit & 1 ? word : ~word;
    }
    return mask;
}

// Slots behind those of all nodes: of all samples (state 0), and how many weights are above zero (state 1).
template <bool LOGS> static __device__ void sum(const Job &job) {
    __shared__ double weights[SUMMED];
    const long long first = blockIdx.y * (long long)SUMMED, groups = (job.count + 31) / 32;
    const double top = LOGS ? number_of(*job.largest) : 0.0;
    for (int i = threadIdx.x; i < SUMMED; i += blockDim.x) {
        double weight = first + i < groups * 32 ? job.weights[first + i] : LOGS ? -infinity() : 0.0;
        if (LOGS) weight = weight > -infinity() ? exp(weight - top) : 0.0;
        weights[i] = weight;
    }
    __syncthreads();
    const int slot = blockIdx.x * blockDim.x + threadIdx.x;
    if (slot >= job.slot_count) return;
    const int4 what = job.slots[slot];
    const bool counts = what.w == 0 && what.y == 1 && what.x < 0;
    double total = 0.0, squares = 0.0;
    for (int group = 0; group < SUMMED / 32 && first / 32 + group < groups; group++) {
        const unsigned mask = mask_of(job, what, first / 32 + group);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const double weight = weights[group * 32 + i];
            const double here = counts ? weight > 0.0 : mask >> i & 1 ? weight : 0.0;
            total += here, squares += here * weight;
        }
    }
    job.pieces[blockIdx.y * job.slot_count + slot] = {total, squares};
}

extern "C" __global__ void gather(const Job job) {
    const int slot = blockIdx.x * blockDim.x + threadIdx.x;
    if (slot >= job.slot_count) return;
    double2 total = {0.0, 0.0};
    for (int piece = 0; piece < job.piece_count; piece++) {
        const double2 more = job.pieces[piece * job.slot_count + slot];
        total.x += more.x, total.y += more.y;
    }
    job.sums[slot] = total;
    // Behind the sums: their shift.
    if (slot == 0) job.sums[job.slot_count] = {number_of(*job.largest), 0.0};
}

// A warp takes 32 samples, a block in y some of the nodes that are weighed.
template <bool LOGS> static __device__ void score(const Job &job) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x, group = at / 32;
    const int lane = threadIdx.x % 32;
    const double top = number_of(*job.largest);
    if (at >= job.count || !(top > (LOGS ? -infinity() : 0.0))) return;
    const double share = LOGS ? exp(job.weights[at] - top) : job.weights[at] / top;
    const Word whole = (Word)rint(share * SCORE_UNIT);
    if (!whole) return;
    const unsigned *words = job.words + group * job.planes;
    for (int w = blockIdx.y; w < job.weighed_count; w += gridDim.y) {
        const int n = job.weighed[w].x;
        const int4 node = job.nodes[2 * n], more = job.nodes[2 * n + 1];
        int row;
        locate<1>(job.parents, node.w, more.x, words, lane, &row);
        atomicAdd(&job.scores[node.y + row * node.z + state_of(words, more.y, more.z, lane)], whole);
    }
}

// Lift the chances of possible states to `least` and to OWN_PART of their probabilities; `thresholds.lift` goes the same
// way.
static __device__ void lift(const double *table, double least, int states, double *chances) {
    int top = 0;
    double whole = 0.0;
    for (int s = 0; s < states; s++)
        if (chances[s] > chances[top]) top = s;
    for (int s = 0; s < states; s++) {
        if (table[s] > 0.0) chances[s] = fmax(fmax(chances[s], least), OWN_PART * table[s]);
        whole += chances[s];
    }
    const double lifted = chances[top];
    chances[top] = fmax(fmax(lifted - (whole - 1.0), least), OWN_PART * table[top]);
    whole += chances[top] - lifted;
    for (int s = 0; s < states; s++) chances[s] /= whole;
}

// Make thresholds, order and ratios of a table row from its chances; `reference.thresholds_of` says how.
template <bool LOGS> static __device__ void settle(const Job &job, int entry, int first, int states) {
    const double *chances = job.chances + entry, *table = job.tables + entry;
    Byte *order = job.order + entry;
    // From the most probable on, equal ones in their order.
    for (int s = 0; s < states; s++) {
        int k = s;
        for (; k > 0 && chances[s] > chances[order[k - 1]]; k--) order[k] = order[k - 1];
        order[k] = (Byte)s;
    }
    const int top = order[0];
    if (states == 2) order[0] = 0, order[1] = 1;
    long long left = FULL;
    for (int s = 0; s < states; s++) {
        if (s == top || !(table[s] > 0.0)) continue;
        const long long width = (long long)(chances[s] * (double)FULL + 0.5);
        left -= width > 1 ? width : 1;
    }
    long long below = 0;
    for (int k = 0; k < states; k++) {
        const int s = order[k];
        long long width = 0;
        if (s == top) width = left;
        else if (table[s] > 0.0) width = max((long long)(chances[s] * (double)FULL + 0.5), 1ll);
        below += width;
        if (k < states - 1) job.thresholds[first + k] = (unsigned)below;
        const double ratio = width > 0 ? table[s] * (double)FULL / (double)width : 0.0;
        job.ratios[entry + s] = LOGS ? log(ratio) : ratio;
    }
}

// A block in y takes a weighed node {node, rows, first number}, its threads take rows.
template <bool LOGS> static __device__ void update(const Job &job) {
    const int4 weighed = job.weighed[blockIdx.y], node = job.nodes[2 * weighed.x];
    const double least = job.smallest[blockIdx.y];
    for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < weighed.y; row += gridDim.x * blockDim.x) {
        const int entry = node.y + row * node.z;
        Word whole = 0;
        for (int s = 0; s < node.z; s++) whole += job.scores[entry + s];
        if (!whole) continue;
        for (int s = 0; s < node.z; s++) {
            const double share = (double)job.scores[entry + s] / (double)whole;
            job.chances[entry + s] += job.rate * (share - job.chances[entry + s]);
            job.scores[entry + s] = 0;
        }
        lift(job.tables + entry, least, node.z, job.chances + entry);
        settle<LOGS>(job, entry, node.x + row * (node.z - 1), node.z);
    }
}

// A block in y takes a table {entry, first threshold, states, rows} of `freed`.
template <bool LOGS> static __device__ void uniform(const Job &job) {
    const int4 what = job.freed[blockIdx.y];
    for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < what.w; row += gridDim.x * blockDim.x) {
        const int entry = what.x + row * what.z;
        int possible = 0;
        for (int s = 0; s < what.z; s++) possible += job.tables[entry + s] > 0.0;
        for (int s = 0; s < what.z; s++) job.chances[entry + s] = job.tables[entry + s] > 0.0 ? 1.0 / possible : 0.0;
        settle<LOGS>(job, entry, what.y + row * (what.z - 1), what.z);
    }
}

// The same for chances that are a table times what is said of its node; `thresholds.shape` goes the same way.
template <bool LOGS> static __device__ void shape(const Job &job) {
    const int4 weighed = job.weighed[blockIdx.y], node = job.nodes[2 * weighed.x];
    const double *said = job.said + weighed.z, least = job.smallest[blockIdx.y];
    for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < weighed.y; row += gridDim.x * blockDim.x) {
        const int entry = node.y + row * node.z;
        const double *table = job.tables + entry;
        double *chances = job.chances + entry, total = 0.0, plain = 0.0;
        for (int s = 0; s < node.z; s++) total += table[s] * said[s], plain += table[s];
        for (int s = 0; s < node.z; s++)
            chances[s] = total > 0.0 ? table[s] * said[s] / total : table[s] / plain;
        lift(table, least, node.z, chances);
        settle<LOGS>(job, entry, node.x + row * (node.z - 1), node.z);
    }
}

#define BOTH(name)                                                                                                     \
    extern "C" __global__ void name##_plain(const Job job) { name<false>(job); }                                      \
    extern "C" __global__ void name##_logs(const Job job) { name<true>(job); }
BOTH(simple)
BOTH(several)
BOTH(wavefront)
BOTH(sum)
BOTH(score)
BOTH(update)
BOTH(uniform)
BOTH(shape)
