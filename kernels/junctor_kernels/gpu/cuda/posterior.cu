// Where what answers are made of lies, and how it is read.

// The posterior of a target over the cases of a block, from case `first` on. Its row of `targets` has where it comes from,
// its row there, and its states. Number: format of the answers, which is single where only doubtful rows are computed in
// double.
template <class Number> struct Posterior {
    const int source, size;
    const real *found, *settled;
    const short *states;

    __device__ __forceinline__ Posterior(const Run *its, const int *target, int first)
        : source(target[0]), size(target[2]), found(its->posteriors + target[1] * its->cases + (index_t)first * target[2]),
          settled(its->settled + target[1]), states(its->states + target[1] * its->cases + first) {}

    __device__ __forceinline__ Number at(int b, int e) const {
        if (source == FOUND) return (Number)found[b * size + e];
        if (source == OBSERVED_STATE) return states[b] == e ? 1 : 0;
        return (Number)settled[e];
    }
};
