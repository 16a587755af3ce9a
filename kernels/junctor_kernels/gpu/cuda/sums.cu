// A sum, and what was rounded off it (Knuth's two-sum). Nothing here may be contracted.
struct Sum {
    double sum = 0, rest = 0;

    __device__ __forceinline__ void add(double value) {
        const double after = __dadd_rn(sum, value), part = __dadd_rn(after, -sum);
        rest = __dadd_rn(rest, __dadd_rn(__dadd_rn(sum, -__dadd_rn(after, -part)), __dadd_rn(value, -part)));
        sum = after;
    }

    __device__ __forceinline__ void add(const Sum &other) {
        add(other.sum);
        rest = __dadd_rn(rest, other.rest);
    }

    // This sum of a group joins that of the groups before it.
    __device__ __forceinline__ void join(double *sums, long long half) const {
        Sum all;
        all.sum = sums[0], all.rest = sums[half];
        all.add(sum);
        sums[0] = all.sum, sums[half] = __dadd_rn(all.rest, rest);
    }
};
