// What is known of the largest entries of the messages of cases, and follows from them: what readers scale them with. Divisors
// are powers of two, or what is taken from logarithms: whole numbers, but for maxima. Behind algebra.cu.

#ifdef LOGS

__device__ __forceinline__ double divisor(word largest) { return -scaling(largest); }

__device__ __forceinline__ double divisor_of(double largest) { return shift_of(log(largest)); }

__device__ __forceinline__ real plain(real x) { return exp(x); }

__device__ __forceinline__ real brought_in(double value, double divisor) { return log(value) - divisor; }

__device__ __forceinline__ double multiplied(double one, double other, double &exponent) {
    const double product = one + other, shift = shift_of(product);
    exponent += shift;
    return product - shift;
}

__device__ __forceinline__ void record(int slot, index_t b, real x) {
    word *largest = run.largest + slot * run.cases + b;
    if (rank(x) > *largest) atomicMax(largest, rank(x));
}

#else

__device__ __forceinline__ double divisor(word largest) { return exponent(largest) - BIAS; }

__device__ __forceinline__ double divisor_of(double largest) {
    int power = 0;
    if (largest > 0) frexp(largest, &power);
    return power;
}

__device__ __forceinline__ real plain(real x) { return x; }

__device__ __forceinline__ real brought_in(double value, double divisor) { return (real)ldexp(value, -(int)divisor); }

__device__ __forceinline__ double multiplied(double one, double other, double &exponent) {
    int power = 0;
    const double product = one * other, number = product > 0 ? frexp(product, &power) : product;
    exponent += power;
    return number;
}

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
    EACH_CASE lanes.at[v] = combine(lanes.at[v], by.at[v]);
}
