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

// The states of one case from the most probable one on, those that are equal up to rounding in their own order.
template <class Number> struct Ranking {
    // Numbers from `low` on and below `high`, 2 for the largest ones, are equal; `state` is the last of them with a place.
    Number low, high, second;
    int state;

    // Finds the most probable state on the way; returns the entropy.
    __device__ __forceinline__ Number begin(const Posterior<Number> &posterior, int b) {
        double total = 0.0;
        Number best = 0;
        second = 0, high = (Number)2;
        for (int e = 0; e < posterior.size; e++) {
            const Number p = posterior.at(b, e);
            total = sum(total, entropy_term((double)p));
            if (e == 0 || p > best) second = best, best = p, state = e;
            else if (p > second) second = p;
        }
        low = best * equal_factor(best);
        return (Number)(total < 0.0 ? -total : 0.0);
    }

    // The state of a place, NO_STATE beyond the last one; places are asked for one after the other.
    __device__ __forceinline__ int at(const Posterior<Number> &posterior, int b, index_t place) {
        if (place >= posterior.size) return NO_STATE;
        if (place == 0) {
            if (second >= low) state = next_state(posterior, b, low, high, 0);
            return state;
        }
        state = next_state(posterior, b, low, high, state + 1);
        if (state < posterior.size) return state;
        high = low;
        Number best = (Number)-1;
        for (int e = 0; e < posterior.size; e++) {
            const Number p = posterior.at(b, e);
            if (p < high && p > best) best = p;
        }
        low = best * equal_factor(best);
        state = next_state(posterior, b, low, high, 0);
        // Rows without an answer hold anything, even nothing that could come next.
        if (state == posterior.size) state--;
        return state;
    }
};

// The scores of some cases of one target, from case `from` of its piece on, a thread for each. Places of all of them are
// gathered first: what goes across the bus has to be whole lines. `places`: how many of a case at a time.
template <class Number>
__device__ __forceinline__ void write_cases(const Run *its, const Posterior<Number> &posterior, int n, const index_t *rows,
                                            int from, int count, int places) {
    __shared__ int states[WRITE_THREADS * SCORE_PLACES];
    __shared__ Number probabilities[WRITE_THREADS * SCORE_PLACES];
    const int me = threadIdx.x, b = from + me;
    const index_t first_row = n * its->answered;
    Ranking<Number> ranking;
    if (me < count) static_cast<Number *>(its->entropies)[first_row + rows[b]] = ranking.begin(posterior, b);
    for (index_t first = 0; first < its->top; first += places) {
        const int here = its->top - first < places ? (int)(its->top - first) : places;
        for (int i = 0; me < count && i < here; i++) {
            const int state = ranking.at(posterior, b, first + i), k = me * here + i;
            states[k] = state;
            if (state == NO_STATE) set_nothing(probabilities[k]);
            else probabilities[k] = posterior.at(b, state);
        }
        __syncthreads();
        for (int k = me; k < count * here; k += blockDim.x) {
            const index_t at = (first_row + rows[from + k / here]) * its->top + first + k % here;
            its->best[at] = states[k];
            static_cast<Number *>(its->probabilities)[at] = probabilities[k];
        }
        __syncthreads();
    }
}

// its: as in `write_posteriors`; `choices` has in its last column the state that is asked for.
template <class Number> __device__ __forceinline__ void write_scores(const Run *its) {
    const int pieces = (int)((its->filled + WRITE_CASES - 1) / WRITE_CASES);
    // All places of a case at once, so that its lines are whole, by fewer threads where there are many.
    const int places = its->top < MOST_PLACES ? (int)its->top : MOST_PLACES;
    const int threads = places < SCORE_PLACES ? WRITE_THREADS : WRITE_THREADS * SCORE_PLACES / places;
    for (int piece = blockIdx.x; piece < (its->asked + its->choosing) * pieces; piece += gridDim.x) {
        const int n = piece / pieces, choice = n - (int)its->asked, first = piece % pieces * WRITE_CASES;
        const int cases = its->filled - first < WRITE_CASES ? (int)its->filled - first : WRITE_CASES;
        const int *target = choice < 0 ? its->targets + TARGET_COLUMNS * n : its->choices + TARGET_COLUMNS * choice;
        const Posterior<Number> posterior(its, target, first);
        const index_t *rows = its->rows + first;
        Number *chosen = static_cast<Number *>(its->chosen) + choice * its->answered;
        for (int from = 0; choice < 0 && from < cases; from += threads)
            write_cases(its, posterior, n, rows, from, cases - from < threads ? cases - from : threads, places);
        for (int b = threadIdx.x; choice >= 0 && b < cases; b += blockDim.x)
            chosen[rows[b]] = posterior.at(b, target[3]);
    }
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, SCORE_SHARE) score_single(const Run *its) {
    write_scores<float>(its);
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS, SCORE_SHARE) score_double(const Run *its) {
    write_scores<double>(its);
}
