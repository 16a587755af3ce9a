// Scores of a block on their way out, where they are asked for in place of posteriors: from [variable] [case] [state] to
// most probable states and entropies of all rows, [target] [row], and probabilities of chosen states, which lie in memory
// of the host. Their specification is `junctor_kernels.tables.scores`, to the last bit: products are not fused. Its
// constants come before the source.

__device__ __forceinline__ double product(double one, double other) { return __dmul_rn(one, other); }
__device__ __forceinline__ double sum(double one, double other) { return __dadd_rn(one, other); }

// p * log(p), 0 for 0.
__device__ __forceinline__ double entropy_term(double p) {
    const long long bits = __double_as_longlong(p > LEAST_TERM ? p : LEAST_TERM);
    const long long power = (bits + SHIFTED) >> 52;
    const double n = sum(__longlong_as_double(power | LARGE), -EXPONENT_ZERO);
    const double part = sum(__longlong_as_double(bits - ((power - 1023) << 52)), -1.0);
    const double s = part / sum(part, 2.0), square = product(s, s);
    double series = sum(product(SERIES_7, square), SERIES_6);
    series = sum(product(series, square), SERIES_5);
    series = sum(product(series, square), SERIES_4);
    series = sum(product(series, square), SERIES_3);
    series = sum(product(series, square), SERIES_2);
    series = sum(product(series, square), SERIES_1);
    const double near = sum(part, -product(s, sum(part, -product(square, series))));
    return product(sum(product(n, LOG_2_HIGH), sum(product(n, LOG_2_LOW), near)), p);
}

// What stands beyond the last state, with the bits that NumPy has.
__device__ __forceinline__ void set_nothing(float &to) { to = __uint_as_float(0x7fc00000u); }
__device__ __forceinline__ void set_nothing(double &to) { to = __longlong_as_double(0x7ff8000000000000ll); }

// The factor within which probabilities count as equal.
__device__ __forceinline__ float equal_factor(float) { return (float)EQUAL_SINGLE; }
__device__ __forceinline__ double equal_factor(double) { return EQUAL_DOUBLE; }

// The first state from `from` on with a probability from `low` on and below `high`, the number of states for none.
template <class Number>
__device__ __forceinline__ int next_state(const Posterior<Number> &posterior, int b, Number low, Number high, int from) {
    while (from < posterior.size && !(posterior.at(b, from) >= low && posterior.at(b, from) < high)) from++;
    return from;
}

// The scores of one case: the entropy, and K states in the order of their probabilities, those that are equal up to
// rounding in their own order.
template <class Number>
__device__ __forceinline__ void write_case(const Run *its, const Posterior<Number> &posterior, int b, index_t at) {
    double total = 0.0;
    Number best = 0, second = 0;
    int state = 0;
    for (int e = 0; e < posterior.size; e++) {
        const Number p = posterior.at(b, e);
        total = sum(total, entropy_term((double)p));
        if (e == 0 || p > best) second = best, best = p, state = e;
        else if (p > second) second = p;
    }
    static_cast<Number *>(its->entropies)[at] = (Number)(total < 0.0 ? -total : 0.0);
    int *states = its->best + at * its->top;
    Number *probabilities = static_cast<Number *>(its->probabilities) + at * its->top;
    const Number equal = equal_factor(best);
    // Numbers from `low` on and below `high`, 2 for the largest ones, are equal; `state` is the last of them with a place.
    Number low = best * equal, high = (Number)2;
    if (second >= low) state = next_state(posterior, b, low, high, 0);
    states[0] = state, probabilities[0] = posterior.at(b, state);
    // What is written lies across the bus, and is not read again.
    for (index_t place = 1; place < its->top; place++) {
        if (place < posterior.size) {
            state = next_state(posterior, b, low, high, state + 1);
            if (state >= posterior.size) {
                high = low, best = (Number)-1;
                for (int e = 0; e < posterior.size; e++) {
                    const Number p = posterior.at(b, e);
                    if (p < high && p > best) best = p;
                }
                low = best * equal;
                state = next_state(posterior, b, low, high, 0);
                // Rows without an answer hold anything, even nothing that could come next.
                if (state == posterior.size) state--;
            }
            states[place] = state, probabilities[place] = posterior.at(b, state);
        } else {
            states[place] = NO_STATE;
            set_nothing(probabilities[place]);
        }
    }
}

// its: as in `write_posteriors`; `choices` has in its last column the state that is asked for.
template <class Number> __device__ __forceinline__ void write_scores(const Run *its) {
    const int pieces = (int)((its->filled + WRITE_CASES - 1) / WRITE_CASES);
    for (int piece = blockIdx.x; piece < (its->asked + its->choosing) * pieces; piece += gridDim.x) {
        const int n = piece / pieces, choice = n - (int)its->asked, first = piece % pieces * WRITE_CASES;
        const int cases = its->filled - first < WRITE_CASES ? (int)its->filled - first : WRITE_CASES;
        const int *target = choice < 0 ? its->targets + TARGET_COLUMNS * n : its->choices + TARGET_COLUMNS * choice;
        const Posterior<Number> posterior(its, target, first);
        const index_t *rows = its->rows + first;
        Number *chosen = static_cast<Number *>(its->chosen) + choice * its->answered;
        for (int b = threadIdx.x; b < cases; b += blockDim.x) {
            if (choice < 0) write_case(its, posterior, b, n * its->answered + rows[b]);
            else chosen[rows[b]] = posterior.at(b, target[3]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, SCORE_SHARE) score_single(const Run *its) {
    write_scores<float>(its);
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, SCORE_SHARE) score_double(const Run *its) {
    write_scores<double>(its);
}
