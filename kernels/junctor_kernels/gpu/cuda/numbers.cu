// Numbers of a format and their bits, for the sources that come in single and in double precision. In the source come
// first `#define DOUBLE` or nothing. Bits of numbers of at least zero are ordered as these are.

#ifdef DOUBLE
typedef double real;
typedef unsigned long long word;
#define WIDTH 2
#define MANTISSA 52
#define BIAS 1022
#define TINY 2.2250738585072014e-308
#define INFINITE 0x7ff0000000000000ull
#else
typedef float real;
typedef unsigned int word;
#define WIDTH 4
#define MANTISSA 23
#define BIAS 126
#define TINY 1.17549435e-38f
#define INFINITE 0x7f800000u
#endif

typedef long long index_t;

__device__ __forceinline__ real number(word bits) {
#ifdef DOUBLE
    return __longlong_as_double((long long)bits);
#else
    return __uint_as_float(bits);
#endif
}

__device__ __forceinline__ word bits_of(real number) {
#ifdef DOUBLE
    return (word)__double_as_longlong(number);
#else
    return __float_as_uint(number);
#endif
}
