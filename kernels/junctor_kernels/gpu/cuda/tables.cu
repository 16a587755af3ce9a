// Everything but contractions, for V neighbouring cases: evidence, bounds, posteriors, what is found of a whole plan.

// Keep in mind that a case has lost something: most have not, which saves looking at every edge.
template <int V> __device__ __forceinline__ void remember(const Lanes<V> &lost, index_t b) {
    EACH_CASE if (lost.at[v] != 0) run.lossy[b + v] = 1;
}

// What a table lost to the format itself; logarithms lose nothing, their `least` is 1.
template <int V>
__device__ __forceinline__ void set_bounds(
    int slot, index_t b, const Lanes<V, double> &scale, const Lanes<V> &least) {
    const index_t at = slot * run.cases + b;
    Lanes<V> lost;
    EACH_CASE lost.at[v] = least.at[v] < (real)TINY ? (real)TINY : (real)0;
    store(run.scale + at, scale);
    store(run.least + at, least);
    store(run.lost + at, lost);
    store(run.open + at, lost);
    remember(lost, b);
}

// Rows [first, last) of a slice; the bounds go with the first of them.
template <int V> __device__ __forceinline__ void slice(const int *step, int first, int last, index_t b) {
    int column[V] = {};
    for (int n = step[OBSERVED]; n < step[OBSERVED] + step[VARIABLES]; n++) {
        const Lanes<V, short> states = load<V>(run.states + run.observed[2 * n] * run.cases + b);
        EACH_CASE column[v] += states.at[v] * run.observed[2 * n + 1];
    }
    const real *columns = run.columns + step[PLACE];
    real *table = first_row<V>(b) + step[ROW] * row_length<V>();
#pragma unroll 4
    for (int e = first; e < last; e++) {
        Lanes<V> line;
        EACH_CASE line.at[v] = columns[(index_t)e * step[COLUMNS] + column[v]];
        store(table + e * row_length<V>(), line);
    }
    if (first) return;
    Lanes<V, double> scale;
    Lanes<V> least;
    EACH_CASE scale.at[v] = run.scales[step[FACTS] + column[v]];
    EACH_CASE least.at[v] = (real)run.leasts[step[FACTS] + column[v]];
    set_bounds(step[SLOT], b, scale, least);
}

// What the cases say about state e of a weighted variable: 1 or 0 where they observe one, 1 where they observe none.
template <int V>
__device__ __forceinline__ Lanes<V, double> said(
    const Lanes<V, short> &seen, int e, const double *given, bool any_given) {
    Lanes<V, double> value = {};
    if (any_given) value = load<V>(given + e * run.cases);
    EACH_CASE if (seen.at[v] != GIVEN) value.at[v] = seen.at[v] < 0 || seen.at[v] == e ? 1 : 0;
    return value;
}

template <int V> __device__ __forceinline__ void likelihood(const int *step, index_t b) {
    const double *given = run.likelihoods + (index_t)step[PLACE] * run.cases + b;
    const Lanes<V, short> seen = load<V>(run.states + step[OBSERVED] * run.cases + b);
    bool any_given = false;
    EACH_CASE any_given |= seen.at[v] == GIVEN;
    Lanes<V, double> largest = {}, scale = {};
    real *table = first_row<V>(b) + step[ROW] * row_length<V>();
    Lanes<V> least;
    EACH_CASE largest.at[v] = least.at[v] = 1;
    double lowest[V];
    EACH_CASE lowest[v] = 1;
    if (any_given) {
        EACH_CASE largest.at[v] = 0;
        EACH_CASE lowest[v] = 1.0 / 0.0;
        // With few cases nothing else is under way while a number is loaded.
#pragma unroll(V == 1 ? 8 : 4)
        for (int e = 0; e < step[ENTRIES]; e++) {
            const Lanes<V, double> value = said<V>(seen, e, given, any_given);
            EACH_CASE largest.at[v] = value.at[v] > largest.at[v] ? value.at[v] : largest.at[v];
            EACH_CASE lowest[v] = value.at[v] > 0 && value.at[v] < lowest[v] ? value.at[v] : lowest[v];
        }
    }
    EACH_CASE {
        scale.at[v] = divisor_of(largest.at[v]);
        if (!LOSSLESS && largest.at[v] > 0) least.at[v] = (real)ldexp(lowest[v], -(int)scale.at[v]);
    }
#pragma unroll(V == 1 ? 8 : 4)
    for (int e = 0; e < step[ENTRIES]; e++) {
        const Lanes<V, double> value = said<V>(seen, e, given, any_given);
        Lanes<V> line;
        EACH_CASE line.at[v] = brought_in(value.at[v], scale.at[v]);
        store(table + e * row_length<V>(), line);
    }
    set_bounds(step[SLOT], b, scale, least);
}

#ifdef LOGS

// Add up the exponents of the scales of the operands.
template <int V> __device__ __forceinline__ void bound(const int *step, index_t b) {
    const Lanes<V, word> largest = load<V>(run.largest + step[SLOT] * run.cases + b);
    Lanes<V, double> scale;
    Lanes<V> least;
    EACH_CASE scale.at[v] = divisor(largest.at[v]), least.at[v] = 1;
    for (int k = step[FIRST_PARENT]; k < step[FIRST_PARENT] + step[PARENTS]; k++) {
        const Lanes<V, double> its_scale = load<V>(run.scale + run.parents[3 * k] * run.cases + b);
        EACH_CASE scale.at[v] += its_scale.at[v];
    }
    set_bounds(step[SLOT], b, scale, least);
}

#else

// Add up the exponents of the scales of the operands and bound what was lost, as `junctor.propagation` says.
template <int V> __device__ __forceinline__ void bound(const int *step, index_t b) {
    const index_t slot = step[SLOT] * run.cases + b;
    const Lanes<V, word> bits = load<V>(run.largest + slot), small = load<V>(run.smallest + slot);
    Lanes<V, double> scale;
    Lanes<V> least, product, messages = {}, handed_on = {}, here = {};
    EACH_CASE {
        scale.at[v] = divisor(bits.at[v]);
        least.at[v] = ~small.at[v] < INFINITE ? number(~small.at[v]) * scaling(bits.at[v]) : (real)1;
        least.at[v] = least.at[v] < 1 ? least.at[v] : (real)1;
        product.at[v] = 1;
    }
    for (int k = step[FIRST_PARENT]; k < step[FIRST_PARENT] + step[PARENTS]; k++) {
        const index_t other = run.parents[3 * k] * run.cases + b;
        const int role = run.parents[3 * k + 1];
        const Lanes<V, double> its_scale = load<V>(run.scale + other);
        const Lanes<V> its_least = load<V>(run.least + other), lost = load<V>(run.lost + other);
        EACH_CASE scale.at[v] += its_scale.at[v];
        EACH_CASE product.at[v] *= its_least.at[v];
        if (role == CONSTANT) {
            EACH_CASE here.at[v] += step[TERMS] * lost.at[v];
            continue;
        }
        EACH_CASE messages.at[v] += lost.at[v] * (1 + messages.at[v]);
        if (role == OPEN) {
            const Lanes<V> open = load<V>(run.open + other);
            EACH_CASE handed_on.at[v] += open.at[v];
        }
    }
    const real growth = (real)run.growth[(step - run.steps) / STEP_COLUMNS];
    Lanes<V> lost, open;
    EACH_CASE {
        const real largest = number(bits.at[v]);
        const real lowest = product.at[v] < least.at[v] ? product.at[v] : least.at[v];
        if (lowest < (real)TINY) here.at[v] += step[PARENTS] * (real)TINY * step[TERMS];
        const bool lossless = messages.at[v] == 0 && here.at[v] == 0 && handed_on.at[v] == 0;
        const real more = 1 + messages.at[v];
        lost.at[v] = lossless ? (real)0 : (growth * messages.at[v] + here.at[v] * more) / largest;
        open.at[v] = lossless ? (real)0 : (growth * handed_on.at[v] + here.at[v]) * more / largest;
    }
    store(run.scale + slot, scale);
    store(run.least + slot, least);
    store(run.lost + slot, lost);
    store(run.open + slot, open);
    remember(lost, b);
}

#endif

// The posteriors of a warp's cases lie side by side: [variable] [case] [state]. Lanes first sum their own cases, then
// write neighbouring numbers, whatever case they belong to. `room` holds two numbers for each of the warp's cases.
template <int V>
__device__ __forceinline__ void marginal(const int *step, int row, index_t chunk, int cases, real *room) {
    const int entries = step[ENTRIES], lane = threadIdx.x % 32;
    const int slot = step[KIND] == REDUCE ? step[SLOT] : -1;
    const real *table = first_row<V>(chunk) + step[ROW] * row_length<V>();
    real *by = room, *totals = room + 32 * V;
    if (lane * V < cases) {
        const Lanes<V> scales = scaling_of<V>(slot, chunk + lane * V);
        Lanes<V> total = {};
#pragma unroll(V == 1 ? 8 : 4)
        for (int e = 0; e < entries; e++) {
            const Lanes<V> line = load<V>(table + e * row_length<V>() + lane * V);
            EACH_CASE total.at[v] += plain(combine(line.at[v], scales.at[v]));
        }
        store(by + lane * V, scales);
        store(totals + lane * V, total);
    }
    __syncwarp();
    real *out = run.posteriors + row * run.cases + chunk * entries;
    for (int n = lane; n < cases * entries; n += 32) {
        const int b = n / entries, e = n % entries;
        out[n] = plain(combine(table[e * row_length<V>() + b], by[b])) / totals[b];
    }
    __syncwarp();
}

// P(e) as a number near the neutral element and its exponent, the share of the probability that losses can have moved at
// edges, the largest open share of a result.
template <int V> struct Finding {
    Lanes<V, double> number, exponent, moved, left;

    __device__ __forceinline__ Finding() {
        EACH_CASE number.at[v] = NEUTRAL, exponent.at[v] = moved.at[v] = left.at[v] = 0;
    }

    __device__ __forceinline__ Finding(const double *at, index_t b)
        : number(load<V>(at + NUMBER * run.cases + b)), exponent(load<V>(at + POWER * run.cases + b)),
          moved(load<V>(at + MOVED * run.cases + b)), left(load<V>(at + LEFT * run.cases + b)) {}

    __device__ __forceinline__ void add(const Finding &other) {
        EACH_CASE exponent.at[v] += other.exponent.at[v];
        EACH_CASE number.at[v] = multiplied(number.at[v], other.number.at[v], exponent.at[v]);
        EACH_CASE moved.at[v] += other.moved.at[v];
        // Not (other.left > left), so that a bound of 0/0 is kept.
        EACH_CASE if (!(other.left.at[v] <= left.at[v])) left.at[v] = other.left.at[v];
    }

    __device__ __forceinline__ void write(double *at, index_t b) const {
        store(at + NUMBER * run.cases + b, number);
        store(at + POWER * run.cases + b, exponent);
        store(at + MOVED * run.cases + b, moved);
        store(at + LEFT * run.cases + b, left);
    }
};

// What every `step`-th table with a part in the results adds for some cases, from the `first` on.
template <int V> __device__ __forceinline__ Finding<V> finding(index_t b, int first, int step) {
    Finding<V> found;
    bool lossy = false;
    const Lanes<V, word> lost_any = load<V>(run.lossy + b);
    EACH_CASE lossy |= lost_any.at[v] != 0;
    for (int n = first; n < (lossy ? run.closings : run.totals); n += step) {
        const int *what = run.closing + CLOSING_COLUMNS * n;
        const index_t down = what[1] * run.cases + b;
        const double entries = what[2];
        Finding<V> here;
        if (n < run.totals) {
            const Lanes<V, word> largest = load<V>(run.largest + down);
            EACH_CASE here.number.at[v] = combine(of_rank(largest.at[v]), scaling(largest.at[v]));
            here.exponent = load<V>(run.scale + down);
        }
        const Lanes<V> its = load<V>(run.open + down);
        if (what[0]) EACH_CASE here.left.at[v] = 2 * entries * its.at[v];
        if (what[3] >= 0) {
            const index_t up = what[3] * run.cases + b;
            const Lanes<V> mine = load<V>(run.open + up);
            const Lanes<V> lost_up = load<V>(run.lost + up), lost_down = load<V>(run.lost + down);
            EACH_CASE {
                here.moved.at[v] = entries * (mine.at[v] * (1.0 + lost_down.at[v]) + its.at[v] * (1.0 + lost_up.at[v]));
                if (here.moved.at[v] != 0) {
                    const index_t whole = what[4] * run.cases + b + v;
                    const double power = run.scale[whole] - run.scale[up + v] - run.scale[down + v];
                    // The one entry of a total is its least.
                    here.moved.at[v] /= ldexp((double)run.least[whole], (int)power);
                }
            }
        }
        found.add(here);
    }
    return found;
}

// The parts of what was found, added up.
template <int V> __device__ __forceinline__ void finish(index_t b) {
    Finding<V> found;
    for (int part = 0; part < PARTS; part++) found.add(Finding<V>(run.parts + SUMS * part * run.cases, b));
    found.write(run.found, b);
}

// The bounds of a table that no case changes: exponent of its scale, lost, open, least.
template <int V> __device__ __forceinline__ void settle_fixed(int slot, int n, index_t b) {
    const double *fixed = run.fixed + 4 * n;
    const index_t at = slot * run.cases + b;
    Lanes<V, double> scale;
    Lanes<V> lost, open, least;
    EACH_CASE scale.at[v] = fixed[0], lost.at[v] = (real)fixed[1], open.at[v] = (real)fixed[2];
    EACH_CASE least.at[v] = (real)fixed[3];
    store(run.scale + at, scale);
    store(run.lost + at, lost);
    store(run.open + at, open);
    store(run.least + at, least);
    remember(lost, b);
}

// What is neither a contraction nor a posterior, for V cases.
template <int V> __device__ __forceinline__ void alone(const int *item, index_t b) {
    if (item[0] == FIXED_TABLE) return settle_fixed<V>(item[1], item[2], b);
    const int *step = run.steps + STEP_COLUMNS * item[1];
    if (item[0] == BOUND) return bound<V>(step, b);
    if (item[0] == FIND) return finding<V>(b, item[2], PARTS).write(run.parts + SUMS * item[2] * run.cases, b);
    if (item[0] == FINISH) return finish<V>(b);
    return step[KIND] == SLICE ? slice<V>(step, item[2], item[3], b) : likelihood<V>(step, b);
}
