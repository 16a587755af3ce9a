// Messages of loopy belief propagation on a GPU; agrees with `junctor_kernels.beliefs`, which says what is in the arrays.
//
// All blocks of a grid stay for all levels and wait for each other behind each step, so they have to be on the device
// together (a cooperative launch). In a step a block takes a number at a time: of what parents say of a node, or of a
// message to a parent. Which block that is changes no bit. What comes of several messages to a node are products of
// them, here sums of logarithms, so that each can be left out again; those that are zero are counted.
//
// In the source comes first MOST_THREADS, MOST_STATES and CLEARED as an enum.
typedef unsigned long long Word;

struct Messages {
    const int4 *tables, *links;
    const int *children, *levels, *owners;
    const int2 *senders;
    const double *probabilities, *own;
    double *up, *down, *prior, *mine, *below;
    Word *barrier;
    long long level_count, messages, sweeps;
};

// What threads of a block have in common; a sum ends in its first number.
__shared__ double parts[MOST_THREADS], weights[MOST_THREADS], totals[MOST_STATES];
__shared__ int offsets[MOST_THREADS], zeros[MOST_THREADS], lost[MOST_STATES];

// All blocks wait until every one is here; what they wrote before is seen afterwards. `round` counts these meetings.
static __device__ void meet(const Messages &job, Word &round) {
    __threadfence();
    __syncthreads();
    round++;
    if (threadIdx.x == 0) {
        atomicAdd(job.barrier, 1ull);
        while (*(volatile Word *)job.barrier < round * gridDim.x) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
}

// A table: {states, first link, links, first entry}; its variables: parents, the slowest first, then the node itself.
// One of them stays in a state: what is asked for is the sum over all others.
struct Asked {
    const int4 table;
    const double *mine;
    int fixed, state;

    __device__ int size(const Messages &job, int variable) const {
        return variable == fixed ? 1 : variable == table.z ? table.x : job.links[table.y + variable].w;
    }
};

struct Place {
    double weight;
    int at;
};

// The entry that a number says of some variables, and the product of their messages.
static __device__ Place place_of(const Messages &job, const Asked &asked, int first, int last, int number) {
    Place found = {1.0, 0};
    for (int variable = last - 1; variable >= first; variable--) {
        const bool node = variable == asked.table.z;
        const int4 link = node ? int4{0, 1, 0, asked.table.x} : job.links[asked.table.y + variable];
        const double *message = node ? asked.mine : job.down + link.z;
        int state = asked.state;
        if (variable != asked.fixed) {
            state = number % link.w, number /= link.w;
            if (message) found.weight *= __ldcg(message + state);
        }
        found.at += state * link.y;
    }
    return found;
}

// The sum, in the first thread: threads go over the fastest variables, as many as they are enough for, and over the rest.
static __device__ double sum_of(const Messages &job, const Asked &asked) {
    const int threads = blockDim.x;
    int split = asked.table.z + 1, inner = 1, outer = 1;
    while (split && inner * asked.size(job, split - 1) <= threads) inner *= asked.size(job, --split);
    for (int variable = 0; variable < split; variable++) outer *= asked.size(job, variable);
    const int slots = threads / inner, slot = threadIdx.x / inner;
    const Place mine = place_of(job, asked, split, asked.table.z + 1, threadIdx.x % inner);
    const double *entries = job.probabilities + asked.table.w + mine.at;
    double total = 0.0;
    for (int start = 0; start < outer; start += threads) {
        const int here = min(threads, outer - start);
        if (threadIdx.x < here) {
            const Place place = place_of(job, asked, 0, split, start + threadIdx.x);
            weights[threadIdx.x] = place.weight, offsets[threadIdx.x] = place.at;
        }
        __syncthreads();
        if (slot < slots)
#pragma unroll 16
            for (int o = slot; o < here; o += slots) total += weights[o] * entries[offsets[o]];
        __syncthreads();
    }
    parts[threadIdx.x] = total * mine.weight;
    __syncthreads();
    for (int offset = threads / 2; offset; offset /= 2) {
        if (threadIdx.x < offset) parts[threadIdx.x] += parts[threadIdx.x + offset];
        __syncthreads();
    }
    return parts[0];
}

// What all children and a node's own evidence say of each of its states, and with `down` its parents as well: logarithms
// in `totals`, and how many of them are zero in `lost`.
static __device__ void hear(const Messages &job, const int4 &table, const int4 &more, bool down) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int start = 0; start < table.x; start += warps) {
        const int state = start + threadIdx.x / 32;
        double total = 0.0;
        int none = 0;
        if (state < table.x)
            for (int k = lane; k < more.z; k += 32) {
                const double said = __ldcg(job.up + job.children[more.y + k] + state);
                if (said > 0.0) total += log(said);
                else none++;
            }
        parts[threadIdx.x] = total, zeros[threadIdx.x] = none;
        __syncwarp();
        for (int offset = 16; offset; offset /= 2) {
            if (lane < offset) {
                parts[threadIdx.x] += parts[threadIdx.x + offset];
                zeros[threadIdx.x] += zeros[threadIdx.x + offset];
            }
            __syncwarp();
        }
        if (lane == 0 && state < table.x) {
            const double known = job.own[more.x + state] * (down ? __ldcg(job.prior + more.x + state) : 1.0);
            totals[state] = parts[threadIdx.x] + (known > 0.0 ? log(known) : 0.0);
            lost[state] = zeros[threadIdx.x] + !(known > 0.0);
        }
        __syncwarp();
    }
    __syncthreads();
}

// Write shares of what was heard, without a message (or with all of them): 1 in all, the same for each where all is zero.
static __device__ void share(int states, const double *without, double *out) {
    const double nothing = __longlong_as_double(0xFFF0000000000000ll);
    double most = nothing, whole = 0.0;
    for (int s = 0; s < states; s++) {
        const double said = without ? __ldcg(without + s) : 1.0;
        const bool possible = lost[s] == !(said > 0.0);
        const double mine = !possible ? nothing : said > 0.0 && without ? totals[s] - log(said) : totals[s];
        most = max(most, mine);
        out[s] = mine;
    }
    for (int s = 0; s < states; s++) {
        out[s] = most > nothing ? exp(out[s] - most) : 1.0;
        whole += out[s];
    }
    for (int s = 0; s < states; s++) out[s] /= whole;
}

static __device__ double rounded(double number) {
    const long long bits = __double_as_longlong(number) + (1ll << (CLEARED - 1));
    return __longlong_as_double(bits >> CLEARED << CLEARED);
}

static __device__ void speak(const Messages &job, int node, bool down) {
    const int4 table = job.tables[2 * node], more = job.tables[2 * node + 1];
    hear(job, table, more, down);
    if (down) {
        for (int k = threadIdx.x; k < more.z; k += blockDim.x) {
            const int at = job.children[more.y + k];
            share(table.x, job.up + at, job.down + at);
        }
    } else if (threadIdx.x == 0) {
        share(table.x, nullptr, job.mine + more.x);
        for (int s = more.x; s < more.x + table.x; s++) job.below[s] = rounded(job.mine[s]);
    }
    __syncthreads();
}

// Messages of the tables of a level to their parents.
static __device__ void send(const Messages &job, int level, int nodes) {
    for (int at = job.levels[3 * level + 2] + blockIdx.x; at < job.levels[3 * level + 5]; at += gridDim.x) {
        const int2 sender = job.senders[at];
        const int4 table = job.tables[2 * sender.y], link = job.links[sender.x];
        const double *mine = sender.y < nodes ? job.mine + job.tables[2 * sender.y + 1].x : nullptr;
        const double sum = sum_of(job, {table, mine, sender.x - table.y, at - link.z});
        if (threadIdx.x == 0) job.up[at] = sum;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS) propagate(const Messages job) {
    Word round = 0;
    const int levels = (int)job.level_count, nodes = job.levels[3 * levels];
    for (long long m = blockIdx.x * blockDim.x + threadIdx.x; m < job.messages; m += gridDim.x * blockDim.x) job.up[m] = 1.0;
    meet(job, round);
    for (int sweep = 0; sweep < job.sweeps; sweep++) {
        for (int level = 0; level < levels; level++) {
            for (int at = job.levels[3 * level + 1] + blockIdx.x; at < job.levels[3 * level + 4]; at += gridDim.x) {
                const int4 table = job.tables[2 * job.owners[at]], more = job.tables[2 * job.owners[at] + 1];
                const double sum = sum_of(job, {table, nullptr, table.z, at - more.x});
                if (threadIdx.x == 0) job.prior[at] = sum;
                __syncthreads();
            }
            meet(job, round);
            for (int n = job.levels[3 * level] + blockIdx.x; n < job.levels[3 * level + 3]; n += gridDim.x)
                speak(job, n, true);
            meet(job, round);
        }
        send(job, levels, nodes);
        meet(job, round);
        for (int level = levels - 1; level >= 0; level--) {
            for (int n = job.levels[3 * level] + blockIdx.x; n < job.levels[3 * level + 3]; n += gridDim.x)
                speak(job, n, false);
            meet(job, round);
            send(job, level, nodes);
            if (level) meet(job, round);
        }
    }
}
