// Numbers as they are combined and gathered, and the order of their largest entries. Plain numbers, or (LOGS) logarithms;
// gathered by sums, or (MAXIMA) by maxima.

#ifdef LOGS

#define NEUTRAL 0
#define EMPTY_SUM (-1.0 / 0.0)
#define LOSSLESS true

__device__ __forceinline__ real combine(real one, real other) { return one + other; }

// Ordered like the numbers; 0 is below all of them.
__device__ __forceinline__ word rank(real x) {
    const word bits = bits_of(x);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

__device__ __forceinline__ real of_rank(word rank) { return number(rank >> 63 ? rank & ~(1ull << 63) : ~rank); }

__device__ __forceinline__ bool is_nothing(real x) { return x < -1.7976931348623157e308; }

// What is taken from logarithms of which this is the largest: a whole number, which rounds nothing, or, of maxima, itself;
// where all of them are -inf, nothing.
__device__ __forceinline__ real shift_of(real most) {
    if (is_nothing(most)) return 0;
#ifdef MAXIMA
    return most;
#else
    return rint(most);
#endif
}

// What is added to the entries of a message.
__device__ __forceinline__ real scaling(word largest) { return -shift_of(of_rank(largest)); }

#else

#define NEUTRAL 1
#define EMPTY_SUM 0
#define LOSSLESS false

__device__ __forceinline__ real combine(real one, real other) { return one * other; }

// Bits of numbers of at least zero are in order.
__device__ __forceinline__ word rank(real x) { return bits_of(x); }

__device__ __forceinline__ real of_rank(word rank) { return number(rank); }

__device__ __forceinline__ int exponent(word largest) {
    int biased = (int)(largest >> MANTISSA);
    return biased > 1 ? biased : 1;
}

// The power of two that brings an entry of these bits into [0.5, 1).
__device__ __forceinline__ real scaling(word largest) {
    return number((word)(2 * BIAS + 1 - exponent(largest)) << MANTISSA);
}

#endif

#ifdef MAXIMA

struct Sum {
    real most;

    __device__ __forceinline__ Sum() : most(EMPTY_SUM) {}

    __device__ __forceinline__ void add(real x) { most = x > most ? x : most; }

    __device__ __forceinline__ void add(const Sum &other) { add(other.most); }

    __device__ __forceinline__ real value() const { return most; }
};

__device__ __forceinline__ real sum_of(real one, real other) { return other > one ? other : one; }

__device__ __forceinline__ real with_term(real sum, real x) { return sum_of(sum, x); }

__device__ __forceinline__ real joined(real one, real other) { return sum_of(one, other); }

__device__ __forceinline__ real sum_of_products(real a, real b, real c, real d) {
    return sum_of(combine(c, d), combine(a, b));
}

#elif defined(LOGS)

// The logarithm of a sum of exponentials: the largest term so far, and the sum divided by it.
struct Sum {
    real most, rest;

    __device__ __forceinline__ Sum() : most(EMPTY_SUM), rest(0) {}

    __device__ __forceinline__ void add(real x) { join(x, 1); }

    __device__ __forceinline__ void add(const Sum &other) { join(other.most, other.rest); }

    __device__ __forceinline__ real value() const { return rest > 0 ? most + log(rest) : most; }

  private:
    __device__ __forceinline__ void join(real x, real times) {
        if (is_nothing(x)) return;
        if (rest == 0) {
            most = x, rest = times;
            return;
        }
        const real apart = exp(x > most ? most - x : x - most);
        rest = x > most ? rest * apart + times : rest + times * apart;
        most = x > most ? x : most;
    }
};

__device__ __forceinline__ real sum_of(real one, real other) {
    const real most = other > one ? other : one;
    return is_nothing(most) ? most : most + log(1 + exp(other > one ? one - other : other - one));
}

__device__ __forceinline__ real sum_of_products(real a, real b, real c, real d) {
    return sum_of(combine(c, d), combine(a, b));
}

// Where operands are scaled, so that logarithms are about 0 at the most, a sum is one of plain numbers: an exponential
// for each term. What is below the range counts as its end, and with a sum near that, or above the range, nothing is sure.
#define SUMS_ARE_PLAIN
#define LEAST_LOG -700
#define LEAST_SURE 1e-200

__device__ __forceinline__ real with_term(real sum, real x) {
    const real term = exp(x > LEAST_LOG ? x : LEAST_LOG);
    return is_nothing(x) ? sum : sum + term;
}

__device__ __forceinline__ real joined(real one, real other) { return one + other; }

__device__ __forceinline__ bool is_sure(real sum) { return sum == 0 || (sum >= LEAST_SURE && sum < -EMPTY_SUM); }

#else

struct Sum {
    real total;

    __device__ __forceinline__ Sum() : total(0) {}

    __device__ __forceinline__ void add(real x) { total += x; }

    __device__ __forceinline__ void add(const Sum &other) { total += other.total; }

    __device__ __forceinline__ real value() const { return total; }
};

__device__ __forceinline__ real sum_of(real one, real other) { return one + other; }

__device__ __forceinline__ real with_term(real sum, real x) { return sum + x; }

__device__ __forceinline__ real joined(real one, real other) { return one + other; }

__device__ __forceinline__ real sum_of_products(real a, real b, real c, real d) { return fma(a, b, c * d); }

#endif

// A sum with one more product.
__device__ __forceinline__ real with_product(real sum, real one, real other) {
    return with_term(sum, combine(one, other));
}

#ifdef SUMS_ARE_PLAIN
#define NO_TERMS 0
#else
#define NO_TERMS EMPTY_SUM
#endif

#if defined(LOGS) || defined(MAXIMA)
typedef Sum Total;
#else
// A sum of sums, in double precision, so that rounding does not grow with the number of terms.
struct Total {
    double total;

    __device__ __forceinline__ Total() : total(0) {}

    __device__ __forceinline__ void add(real x) { total += x; }

    __device__ __forceinline__ void add(const Sum &other) { total += other.total; }

    __device__ __forceinline__ void add(const Total &other) { total += other.total; }

    __device__ __forceinline__ real value() const { return (real)total; }
};
#endif
