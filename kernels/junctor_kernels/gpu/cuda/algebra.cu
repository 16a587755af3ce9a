// Numbers as they are combined and gathered, with what is known of the largest entry of a message and follows from it:
// what its readers scale it with. Plain numbers, or (LOGS) logarithms.

#ifdef LOGS

#define NEUTRAL 0
#define LOSSLESS true

__device__ __forceinline__ real combine(real one, real other) { return one + other; }

// Ordered like the numbers; 0 is below all of them.
__device__ __forceinline__ word rank(real x) {
    const word bits = bits_of(x);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

__device__ __forceinline__ real of_rank(word rank) { return number(rank >> 63 ? rank & ~(1ull << 63) : ~rank); }

__device__ __forceinline__ bool is_nothing(real x) { return x < -1.7976931348623157e308; }

// What is added to the entries of a message; where all of them are -inf, nothing.
__device__ __forceinline__ real scaling(word largest) {
    const real most = of_rank(largest);
    return is_nothing(most) ? 0 : -most;
}

__device__ __forceinline__ double log_divisor(word largest) { return -scaling(largest); }

__device__ __forceinline__ real plain(real x) { return exp(x); }

__device__ __forceinline__ real brought_in(double value, double largest) { return log(value) - log(largest); }

// The logarithm of a sum of exponentials: the largest term so far, and the sum divided by it.
struct Sum {
    real most, rest;

    __device__ __forceinline__ Sum() : most(-1.0 / 0.0), rest(0) {}

    __device__ __forceinline__ void add(real x) { join(x, 1); }

    __device__ __forceinline__ void add(const Sum &other) { join(other.most, other.rest); }

    __device__ __forceinline__ real value() const { return rest > 0 ? most + log(rest) : most; }

  private:
    __device__ __forceinline__ void join(real x, real times) {
        if (is_nothing(x)) return;
        const real apart = exp(x > most ? most - x : x - most);
        rest = x > most ? rest * apart + times : rest + times * apart;
        most = x > most ? x : most;
    }
};

__device__ __forceinline__ void record(int slot, index_t b, real x) {
    word *largest = run.largest + slot * run.cases + b;
    if (rank(x) > *largest) atomicMax(largest, rank(x));
}

#else

#define NEUTRAL 1
#define LOSSLESS false

__device__ __forceinline__ real combine(real one, real other) { return one * other; }

__device__ __forceinline__ int exponent(word largest) {
    int biased = (int)(largest >> MANTISSA);
    return biased > 1 ? biased : 1;
}

// The power of two that brings an entry of these bits into [0.5, 1).
__device__ __forceinline__ real scaling(word largest) {
    return number((word)(2 * BIAS + 1 - exponent(largest)) << MANTISSA);
}

__device__ __forceinline__ double log_divisor(word largest) { return (exponent(largest) - BIAS) * LOG_2; }

__device__ __forceinline__ real plain(real x) { return x; }

__device__ __forceinline__ real brought_in(double value, double largest) { return (real)(value / largest); }

struct Sum {
    real total;

    __device__ __forceinline__ Sum() : total(0) {}

    __device__ __forceinline__ void add(real x) { total += x; }

    __device__ __forceinline__ void add(const Sum &other) { total += other.total; }

    __device__ __forceinline__ real value() const { return total; }
};

// Most entries change neither extreme: reading is cheaper than an atomic operation on one place for all of them.
__device__ __forceinline__ void record(int slot, index_t b, real x) {
    const index_t at = slot * run.cases + b;
    if (bits_of(x) > run.largest[at]) atomicMax(run.largest + at, bits_of(x));
    if (x > 0 && ~bits_of(x) > run.smallest[at]) atomicMax(run.smallest + at, ~bits_of(x));
}

#endif

// What scales some cases of an operand; tables that were scaled when they were made have no slot here.
template <int V> __device__ __forceinline__ Lanes<V> scaling_of(int slot, index_t b) {
    Lanes<V> by;
    if (slot < 0) {
        EACH_CASE by.at[v] = NEUTRAL;
        return by;
    }
    const Lanes<V, word> largest = load<V>(run.largest + slot * run.cases + b);
    EACH_CASE by.at[v] = scaling(largest.at[v]);
    return by;
}

template <int V> __device__ __forceinline__ void multiply(Lanes<V> &lanes, const Lanes<V> &by) {
    EACH_CASE lanes.at[v] *= by.at[v];
}
